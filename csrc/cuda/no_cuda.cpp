// A build without CUDA: no devices.
#include "quire/kernels/cuda_device.h"

namespace quire {

int32_t cuda_device_count() { return 0; }
bool cuda_device(int32_t, CudaDevice*) { return false; }
bool built_with_cuda() { return false; }

}  // namespace quire
