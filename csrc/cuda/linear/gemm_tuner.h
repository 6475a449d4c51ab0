// Which of cuBLASLt's algorithms is quickest for a product, measured on the device once and kept on disk.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "linear/cublaslt.h"

namespace quire::cuda {

// out[m, n] = x[m, k] * weight[n, k]^T, all row-major.
struct GemmShape {
  int64_t m = 0, n = 0, k = 0;
  int64_t x_stride = 0, out_stride = 0;
  int32_t in_type = 0, out_type = 0;  // LtDataType

  bool operator==(const GemmShape&) const = default;
};
struct GemmShapeHash {
  size_t operator()(const GemmShape& s) const;
};

// One product, ready to be called with any pointers. Owns cuBLASLt's descriptors.
class GemmPlan {
 public:
  GemmPlan(const CublasLt& lt, const GemmShape& shape);
  GemmPlan(GemmPlan&& other) noexcept;
  GemmPlan& operator=(GemmPlan&&) = delete;
  ~GemmPlan();

  // Candidates by the library's own estimate, best first; at most `count`.
  std::vector<LtHeuristicResult> candidates(CublasLt::Handle handle, size_t workspace_bytes, int count) const;
  // Whether an algorithm, from a file perhaps, can run with so much workspace.
  bool permits(CublasLt::Handle handle, const LtMatmulAlgo& algo, size_t workspace_bytes) const;
  // `adds`: to what `out` holds; some algorithms round the product before that. Returns cuBLASLt's status.
  int run(CublasLt::Handle handle, const LtMatmulAlgo& algo, void* out, const void* x, const void* weight,
          bool adds, void* workspace, size_t workspace_bytes, void* stream) const;

  LtMatmulAlgo algo{};
  int status = 0;  // of making the descriptors

 private:
  const CublasLt& lt_;
  void* desc_ = nullptr;
  void *weight_layout_ = nullptr, *x_layout_ = nullptr, *out_layout_ = nullptr;
};

// The algorithms that were measured, by shape; a text file for each device and library version in
// $QUIRE_CACHE_DIR, $XDG_CACHE_HOME/quire or ~/.cache/quire. A file that cannot be read or written is
// ignored: then shapes are measured again.
class GemmCache {
 public:
  GemmCache(const char* device_name, size_t library_version);
  const LtMatmulAlgo* find(const GemmShape& shape) const;
  void add(const GemmShape& shape, const LtMatmulAlgo& algo);
  // Writes what was added since, atomically, keeping what other processes added.
  void save();

 private:
  void read();

  std::string path_;
  std::unordered_map<GemmShape, LtMatmulAlgo, GemmShapeHash> algos_;
  bool changed_ = false;
};

// Measures each candidate on the caller's operands and returns the quickest, if one runs at all; `out` is
// overwritten, as the workspace is, to push the weight out of the L2 cache between the runs.
std::optional<LtMatmulAlgo> quickest(const GemmPlan& plan, const std::vector<LtHeuristicResult>& candidates,
                                     CublasLt::Handle handle, void* out, const void* x, const void* weight,
                                     void* workspace, size_t workspace_bytes, cudaStream_t stream);

}  // namespace quire::cuda
