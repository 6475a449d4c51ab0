// The CUDA devices of this machine, as far as this build can see them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire {

struct CudaDevice {
  char name[256];
  int32_t compute_capability;  // 90 for 9.0
  size_t total_memory_bytes;
};

// How many CUDA devices there are; 0 without a driver, or in a build without CUDA. Loads on any machine.
int32_t cuda_device_count();

// Fills `device`. Returns false when there is no such device.
bool cuda_device(int32_t index, CudaDevice* device);

// Whether this build contains CUDA code at all.
bool built_with_cuda();

// The CUDA architectures of this build's code as CMake names them, with commas: "80-real,90a-real". Empty
// without CUDA.
const char* cuda_architectures();

}  // namespace quire
