#include "worker/backend.h"

#include <algorithm>

#include "quire/error.h"
#include "quire/kernels/backend_registry.h"
#include "quire/kernels/cuda_device.h"
#include "util/check.h"
#include "util/log.h"

namespace quire {
namespace {

// What EngineConfig::validate has let through: "cuda" or "cuda:N".
int32_t device_index(const std::string& device) { return device == "cuda" ? 0 : std::stoi(device.substr(5)); }

std::string devices_found() {
  if (!built_with_cuda()) return "this build has no CUDA code";
  const int32_t count = cuda_device_count();
  if (count == 0) return "no CUDA device was found, or no driver";
  std::string text = str("found: ");
  for (int32_t i = 0; i < count; ++i) {
    CudaDevice device;
    if (!cuda_device(i, &device)) continue;
    text += str(i > 0 ? ", " : "", "cuda:", i, " ", device.name, " (compute capability ",
                device.compute_capability / 10, ".", device.compute_capability % 10, ")");
  }
  return text;
}

}  // namespace

std::string Backend::name() const {
  return is_device() ? str(ops->backend, ":", device, " (", ops->variant, ")")
                     : str(ops->backend, " (", ops->variant, ")");
}

Backend find_backend(const EngineConfig& config) {
  Backend backend;
  if (config.device == "cpu" || (config.device == "auto" && cuda_kernel_table(0) == nullptr)) {
    backend.ops = find_kernel_table("cpu");
    QUIRE_CHECK(backend.ops != nullptr);
    return backend;
  }
  backend.device = config.device == "auto" ? 0 : device_index(config.device);
  backend.ops = cuda_kernel_table(backend.device);
  backend.runtime = find_device_runtime("cuda");
  if (backend.ops == nullptr || backend.runtime == nullptr) {
    const std::string others = built_with_cuda() ? str(", or a device that this build has machine code for (",
                                                       cuda_architectures(), ")")
                                                 : "";
    throw InvalidArgument(
        str("device '", config.device, "' cannot be used: ", devices_found(), "; use 'cpu'", others));
  }
  CudaDevice there;
  if (cuda_device(backend.device, &there))
    backend.memory_bytes = static_cast<int64_t>(there.total_memory_bytes);
  for (int32_t rank = 1; rank < config.tensor_parallel_size; ++rank) {
    if (cuda_kernel_table(backend.device + rank) == backend.ops) continue;
    throw InvalidArgument(str("tensor_parallel_size ", config.tensor_parallel_size,
                              " needs the devices cuda:", backend.device,
                              " to cuda:", backend.device + config.tensor_parallel_size - 1,
                              ", all of one kind; ", devices_found(), "; use ", rank, " or less, or 'cpu'"));
  }
  return backend;
}

Backend planned_backend(const PlannedDevice& device) {
  Backend backend;
  if (!device.is_cuda()) {
    backend.ops = find_kernel_table("cpu");
    return backend;
  }
  backend.ops = cuda_kernel_table_for(device.compute_capability);
  backend.runtime = find_device_runtime("cuda");
  backend.memory_bytes = device.memory_bytes;
  if (backend.ops == nullptr || backend.runtime == nullptr) {
    throw InvalidArgument(
        str("device '", device.name, "' of compute capability ", device.compute_capability / 10, ".",
            device.compute_capability % 10, " cannot be planned for: ",
            built_with_cuda() ? str("this build has machine code for ", cuda_architectures())
                              : "this build has no CUDA code"));
  }
  return backend;
}

Backend backend_of_rank(const Backend& first, int32_t rank) {
  Backend backend = first;
  if (backend.is_device()) backend.device += rank;
  return backend;
}

bool uses_async_scheduling(const EngineConfig& config, const Backend& backend) {
  if (backend.speculation.num_speculative_tokens == 0)
    return config.async_scheduling.value_or(backend.is_device());
  if (config.async_scheduling.value_or(false)) {
    throw InvalidArgument(
        "async_scheduling true: drafts are made of the tokens of the step before; leave it out, or say "
        "false");
  }
  return false;
}

StepLimits step_limits(const EngineConfig& config, const Backend& backend, int32_t max_model_len) {
  constexpr int64_t kLarge = int64_t{70} << 30;
  const bool is_large = backend.is_device() && backend.memory_bytes >= kLarge;
  StepLimits limits;
  limits.max_num_batched_tokens = config.max_num_batched_tokens.value_or(
      std::max({is_large ? 8192 : 2048, config.max_num_seqs.value_or(1),
                config.enable_chunked_prefill ? 1 : max_model_len}));
  constexpr int32_t kHostSeqs = 64;
  int32_t seqs = kHostSeqs;
  if (backend.is_device()) {
    // Each has max_model_len tokens of four bytes there: all of them not more than 1 GiB.
    constexpr int32_t kMaxTokens = 1 << 28;
    seqs = std::min(is_large ? 1024 : 256, std::max(kMaxTokens / max_model_len, kHostSeqs));
  }
  limits.max_num_seqs = config.max_num_seqs.value_or(std::min(seqs, limits.max_num_batched_tokens));
  return limits;
}

DType resolve_dtype(const EngineConfig& config, const Checkpoint& checkpoint, const Backend& backend) {
  if (config.dtype == "float32") return DType::kFloat32;
  if (config.dtype == "bfloat16") return DType::kBFloat16;
  if (config.dtype == "float16") {
    if (backend.is_device()) return DType::kFloat16;
    throw InvalidArgument("dtype 'float16' is not computed on the CPU; use 'bfloat16' or 'float32'");
  }
  if (checkpoint.main_dtype() == "F16") {
    if (backend.is_device()) return DType::kFloat16;
    log(LogLevel::kWarning, checkpoint.directory(),
        ": float16 weights run as bfloat16 on the CPU; dtype='float32' keeps every bit");
  }
  if (checkpoint.main_dtype() == "F32") {
    if (!backend.is_device()) return DType::kFloat32;
    log(LogLevel::kInfo, checkpoint.directory(),
        ": float32 weights run as bfloat16 on CUDA devices; dtype='float32' keeps every bit, and is slow");
  }
  return DType::kBFloat16;
}

}  // namespace quire
