#include "linear/cublaslt.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#endif

namespace quire::cuda {
namespace {

#if __has_include(<cublasLt.h>)
static_assert(sizeof(LtMatmulAlgo) == sizeof(cublasLtMatmulAlgo_t));
static_assert(sizeof(LtHeuristicResult) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(LtHeuristicResult, state) == offsetof(cublasLtMatmulHeuristicResult_t, state));
static_assert(int{kLtReal32F} == int{CUDA_R_32F} && int{kLtReal16F} == int{CUDA_R_16F});
static_assert(int{kLtReal16BF} == int{CUDA_R_16BF} && int{kLtCompute32F} == int{CUBLAS_COMPUTE_32F});
static_assert(int{kLtTranspose} == int{CUBLAS_OP_T} &&
              int{kLtDescTransA} == int{CUBLASLT_MATMUL_DESC_TRANSA});
static_assert(int{kLtPreferenceMaxWorkspaceBytes} == int{CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES});
#endif

constexpr const char* kLibraries[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
// From the folder of the library we are in (site-packages/quire) to the wheels' beside it.
constexpr const char* kWheelFolders[] = {"../nvidia/cu13/lib/", "../nvidia/cublas/lib/"};

std::string own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&own_folder), &info) == 0 || info.dli_fname == nullptr) return "";
  const std::string path = info.dli_fname;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash + 1);
}

void* open_library() {
  if (const char* wanted = std::getenv("QUIRE_CUBLASLT")) return dlopen(wanted, RTLD_NOW | RTLD_LOCAL);
  for (const char* name : kLibraries)
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  const std::string folder = own_folder();
  for (const char* wheel : kWheelFolders)
    for (const char* name : kLibraries)
      if (void* library = dlopen((folder + wheel + name).c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  return nullptr;
}

struct Loaded {
  CublasLt functions{};
  std::string error;
};

template <typename F>
void find(Loaded& loaded, void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  if (function == nullptr && loaded.error.empty()) loaded.error = std::string("libcublasLt has no ") + name;
}

Loaded load_library() {
  Loaded out;
  void* library = open_library();
  if (library == nullptr) {
    out.error =
        "libcublasLt.so.13 was not found: install the CUDA toolkit or 'pip install nvidia-cublas', or name "
        "the file "
        "in the environment variable QUIRE_CUBLASLT";
    return out;
  }
  CublasLt& lt = out.functions;
  find(out, library, "cublasLtCreate", lt.create);
  find(out, library, "cublasLtDestroy", lt.destroy);
  find(out, library, "cublasLtGetVersion", lt.get_version);
  find(out, library, "cublasLtGetStatusString", lt.status_string);
  find(out, library, "cublasLtMatmulDescCreate", lt.matmul_desc_create);
  find(out, library, "cublasLtMatmulDescSetAttribute", lt.matmul_desc_set_attribute);
  find(out, library, "cublasLtMatmulDescDestroy", lt.matmul_desc_destroy);
  find(out, library, "cublasLtMatrixLayoutCreate", lt.matrix_layout_create);
  find(out, library, "cublasLtMatrixLayoutDestroy", lt.matrix_layout_destroy);
  find(out, library, "cublasLtMatmulPreferenceCreate", lt.preference_create);
  find(out, library, "cublasLtMatmulPreferenceSetAttribute", lt.preference_set_attribute);
  find(out, library, "cublasLtMatmulPreferenceDestroy", lt.preference_destroy);
  find(out, library, "cublasLtMatmulAlgoGetHeuristic", lt.get_heuristic);
  find(out, library, "cublasLtMatmulAlgoCheck", lt.algo_check);
  find(out, library, "cublasLtMatmul", lt.matmul);
  return out;
}

}  // namespace

const CublasLt* CublasLt::load(const char** error) {
  static const Loaded loaded = load_library();
  if (loaded.error.empty()) return &loaded.functions;
  *error = loaded.error.c_str();
  return nullptr;
}

}  // namespace quire::cuda
