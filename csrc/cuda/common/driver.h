// Functions of the driver, found at run time: the library loads on machines without one.
#pragma once

#include <cuda_runtime.h>

namespace quire::cuda {

// As of CUDA 12.0; null where there is no driver or it has none of that name.
inline void* find_driver_function(const char* name) {
  [[maybe_unused]] constexpr unsigned int kVersion = 12000;
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &address, kVersion, cudaEnableDefault, &found);
#else
  const cudaError_t error = cudaGetDriverEntryPoint(name, &address, cudaEnableDefault, &found);
#endif
  return error == cudaSuccess && found == cudaDriverEntryPointSuccess ? address : nullptr;
}

}  // namespace quire::cuda
