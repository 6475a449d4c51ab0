// The few functions of cuBLASLt that we call, found at run time: the library is not linked, and its headers
// are not needed. Declared in our own words; where the official header is present, cublaslt.cpp compares.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire::cuda {

// Opaque and fixed in size by the library's ABI: may be stored and used again with the same version.
struct LtMatmulAlgo {
  uint64_t data[8];
};
struct LtHeuristicResult {
  LtMatmulAlgo algo;
  size_t workspace_bytes;
  int state;  // 0: usable
  float waves_count;
  int reserved[4];
};

enum LtDataType : int { kLtReal32F = 0, kLtReal16F = 2, kLtReal16BF = 14 };
enum LtComputeType : int { kLtCompute32F = 68 };
enum LtOperation : int { kLtTranspose = 1 };
enum LtMatmulDescAttribute : int { kLtDescTransA = 3 };
enum LtPreferenceAttribute : int { kLtPreferenceMaxWorkspaceBytes = 1 };

struct CublasLt {
  using Handle = void*;
  int (*create)(Handle* handle);
  int (*destroy)(Handle handle);
  size_t (*get_version)();
  const char* (*status_string)(int status);
  int (*matmul_desc_create)(void** desc, int compute_type, int scale_type);
  int (*matmul_desc_set_attribute)(void* desc, int attribute, const void* value, size_t bytes);
  int (*matmul_desc_destroy)(void* desc);
  int (*matrix_layout_create)(void** layout, int type, uint64_t rows, uint64_t cols, int64_t ld);
  int (*matrix_layout_destroy)(void* layout);
  int (*preference_create)(void** preference);
  int (*preference_set_attribute)(void* preference, int attribute, const void* value, size_t bytes);
  int (*preference_destroy)(void* preference);
  int (*get_heuristic)(Handle handle, void* desc, void* a, void* b, void* c, void* d, void* preference,
                       int requested, LtHeuristicResult* results, int* returned);
  // 0 when the algorithm can run; then result->workspace_bytes is what it takes.
  int (*algo_check)(Handle handle, void* desc, void* a, void* b, void* c, void* d, const LtMatmulAlgo* algo,
                    LtHeuristicResult* result);
  int (*matmul)(Handle handle, void* desc, const void* alpha, const void* a, void* a_layout, const void* b,
                void* b_layout, const void* beta, const void* c, void* c_layout, void* d, void* d_layout,
                const LtMatmulAlgo* algo, void* workspace, size_t workspace_bytes, void* stream);

  // Loaded once; null when the library is not there or lacks a function, with the reason in `error`.
  // Looked for: the file QUIRE_CUBLASLT names, the loader's path, then the nvidia wheels beside this library.
  static const CublasLt* load(const char** error);
};

}  // namespace quire::cuda
