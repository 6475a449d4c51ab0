// The CUDA devices of this machine, as far as this build can see them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire {

struct KernelTable;

struct CudaDevice {
  char name[256];
  int32_t compute_capability;  // 90 for 9.0
  size_t total_memory_bytes;
};

// How many CUDA devices there are; 0 without a driver, or in a build without CUDA. Loads on any machine.
int32_t cuda_device_count();

// Fills `device`. Returns false when there is no such device.
bool cuda_device(int32_t index, CudaDevice* device);

// What of a device the sizes of workspaces and the choice of kernels depend on.
struct CudaDeviceLimits {
  int32_t compute_capability = 0;  // 90 for 9.0
  int32_t num_sms = 0;
  int32_t max_shared_bytes_per_block = 0;  // with opt-in
  int32_t l2_bytes = 0;                    // of the cache; changes only the order of work
};

// Fills `limits` with a device's. Returns false when there is no such device.
bool cuda_device_limits(int32_t index, CudaDeviceLimits* limits);

// While one lives, what a CUDA kernel table says of sizes and of the choice of kernels is said, on this
// thread, for such a device instead of the current one: none needs to be there. Nothing may be launched
// meanwhile.
class AssumedCudaDevice {
 public:
  explicit AssumedCudaDevice(const CudaDeviceLimits& limits);
  ~AssumedCudaDevice();
  AssumedCudaDevice(const AssumedCudaDevice&) = delete;
  AssumedCudaDevice& operator=(const AssumedCudaDevice&) = delete;

 private:
  const CudaDeviceLimits limits_;
};

// The table for devices of a compute capability; null when no code of this build runs there.
const KernelTable* cuda_kernel_table_for(int32_t compute_capability);

// Whether this build contains CUDA code at all.
bool built_with_cuda();

// The CUDA architectures of this build's code as CMake names them, with commas: "80-real,90a-real". Empty
// without CUDA.
const char* cuda_architectures();

}  // namespace quire
