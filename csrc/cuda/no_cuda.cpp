// A build without CUDA: no devices, no kernels.
#include "quire/kernels/backend_registry.h"
#include "quire/kernels/cuda_device.h"
#include "quire/kernels/device_runtime.h"

namespace quire {

int32_t cuda_device_count() { return 0; }
bool cuda_device(int32_t, CudaDevice*) { return false; }
bool cuda_device_limits(int32_t, CudaDeviceLimits*) { return false; }
bool built_with_cuda() { return false; }
const char* cuda_architectures() { return ""; }
const KernelTable* cuda_kernel_table(int32_t) { return nullptr; }
const KernelTable* cuda_kernel_table_for(int32_t) { return nullptr; }
AssumedCudaDevice::AssumedCudaDevice(const CudaDeviceLimits& limits) : limits_(limits) {}
AssumedCudaDevice::~AssumedCudaDevice() = default;
const DeviceRuntime* find_device_runtime(const char*) { return nullptr; }

}  // namespace quire
