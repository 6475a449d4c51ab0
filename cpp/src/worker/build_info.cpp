#include "quire/build_info.h"

#include "quire/kernels/backend_registry.h"
#include "quire/kernels/cuda_device.h"

namespace quire {

BuildInfo build_info() {
  BuildInfo info;
#ifdef __clang__
  info.compiler = std::string("Clang ") + __clang_version__;
#else
  info.compiler = std::string("GCC ") + __VERSION__;
#endif
#ifdef NDEBUG
  info.build_type = "release";
#else
  info.build_type = "debug";
#endif
  info.has_cuda = built_with_cuda();
  info.cuda_architectures = cuda_architectures();
  info.num_cuda_devices = cuda_device_count();
  for (const KernelTable* table : cpu_kernel_tables()) info.instruction_sets.emplace_back(table->variant);
  info.instruction_set = find_kernel_table("cpu")->variant;
  return info;
}

}  // namespace quire
