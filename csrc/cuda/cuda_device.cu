#include <cuda_runtime.h>

#include <cstring>

#include "quire/kernels/cuda_device.h"

namespace quire {

int32_t cuda_device_count() {
  int count = 0;
  // No driver, or none that is new enough: as good as no device.
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

bool cuda_device(int32_t index, CudaDevice* device) {
  cudaDeviceProp properties{};
  if (index < 0 || index >= cuda_device_count() ||
      cudaGetDeviceProperties(&properties, index) != cudaSuccess) {
    return false;
  }
  std::memcpy(device->name, properties.name, sizeof device->name);
  device->name[sizeof device->name - 1] = '\0';
  device->compute_capability = properties.major * 10 + properties.minor;
  device->total_memory_bytes = properties.totalGlobalMem;
  return true;
}

bool built_with_cuda() { return true; }

}  // namespace quire
