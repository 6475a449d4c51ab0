#include <algorithm>
#include <cctype>

#include "device/buffer.h"
#include "quire/error.h"
#include "quire/kernels/cuda_device.h"
#include "quire/memory_plan.h"
#include "util/str.h"
#include "worker/backend.h"

namespace quire {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

}  // namespace

const std::vector<PlannedDevice>& known_devices() {
  // Memory as the driver tells, which is less than what is sold.
  static const std::vector<PlannedDevice> devices = {
      {"A100", 81'050 * kMiB, 80, 108, 163 << 10},
      {"H100", 81'008 * kMiB, 90, 132, 227 << 10},
      {"H200", 143'167 * kMiB, 90, 132, 227 << 10},
      {"L40S", 45'458 * kMiB, 89, 142, 99 << 10},
  };
  return devices;
}

PlannedDevice find_planned_device(const EngineConfig& config, const std::string& name, int64_t memory_bytes) {
  if (memory_bytes < 0) throw InvalidArgument(str("device_memory ", memory_bytes, " must be above 0"));
  const bool is_host =
      config.device == "cpu" || (config.device == "auto" && name.empty() && cuda_device_count() == 0);
  PlannedDevice device;
  if (is_host) {
    if (!name.empty())
      throw InvalidArgument(str("device_name '", name, "' is a CUDA device's; device is 'cpu'"));
    device.name = "cpu";
    device.memory_bytes = static_cast<int64_t>(available_host_memory());
  } else if (!name.empty() || cuda_device_count() == 0) {
    const std::string wanted = lower(name.empty() ? "H100" : name);
    std::string names;
    for (const PlannedDevice& known : known_devices()) {
      names += (names.empty() ? "" : ", ") + known.name;
      if (lower(known.name) == wanted) device = known;
    }
    if (device.name.empty())
      throw InvalidArgument(str("device_name '", name, "' is not known; known: ", names));
  } else {
    const Backend backend = find_backend(config);
    CudaDevice there;
    CudaDeviceLimits limits;
    if (!cuda_device(backend.device, &there) || !cuda_device_limits(backend.device, &limits))
      throw InvalidArgument(str("device '", config.device, "' cannot be asked what it is"));
    device = {str("cuda:", backend.device, " (", there.name, ")"),
              static_cast<int64_t>(there.total_memory_bytes), limits.compute_capability, limits.num_sms,
              limits.max_shared_bytes_per_block};
  }
  if (memory_bytes > 0) device.memory_bytes = memory_bytes;
  return device;
}

}  // namespace quire
