#include "worker/planned_worker.h"

#include <optional>

#include "quire/kernels/cuda_device.h"
#include "weights/weight_files.h"

namespace quire {

PlannedWorker plan_worker(const EngineConfig& config, const Backend& backend, const PlannedDevice& device,
                          const HfConfig& hf_config, int32_t max_model_len) {
  std::optional<AssumedCudaDevice> assumed;
  if (device.is_cuda()) {
    assumed.emplace(
        CudaDeviceLimits{device.compute_capability, device.num_sms, device.max_shared_bytes_per_block});
  }
  const ModelRunnerConfig runner_config = model_runner_config(config, backend, max_model_len);
  const int32_t world_size = config.tensor_parallel_size;
  const auto platform = make_planning_platform(backend);
  const bool exchanges = device.is_cuda() && world_size > 1 && backend.ops->peer != nullptr;
  const auto communicator =
      make_planned_communicator(/*rank=*/0, world_size, exchanges ? backend.ops->peer->memory_bytes : 0);
  const ModelBuilder builder(config, hf_config, runner_config, *platform, *communicator);
  WeightFiles files =
      config.load_format == "dummy"
          ? WeightFiles{Checkpoint::dummy(config.model), nullptr}
          : open_weight_files(config.model, {backend.ops->weight_layout, config.dtype, 0, world_size,
                                             config.load_format != "safetensors"});
  EngineConfig wanted = config;
  if (files.packed) wanted.dtype = files.packed->header().dtype;

  PlannedWorker planned;
  planned.dtype = resolve_dtype(wanted, files.checkpoint, backend);
  planned.max_in_flight_steps = runner_config.max_in_flight_steps;
  planned.maps_kv_cache_on_demand = platform->maps_kv_cache_on_demand();
  planned.measure = builder.measure(planned.dtype, files.checkpoint);
  DeviceMemoryPlan& plan = planned.measure.plan;
  const auto total = static_cast<size_t>(device.memory_bytes);
  if (!device.is_cuda()) {
    plan.budget = total / static_cast<size_t>(world_size);
    planned.available_kv_cache_bytes = default_host_kv_cache_bytes(total, world_size);
  }
  try {
    if (device.is_cuda()) {
      plan.set_budget(config, planned_free_bytes(total), total);
    } else if (!files.packed) {
      plan.check_host(total);
    }
  } catch (const Error& refused) {
    planned.refusal = refused.what();
  }
  if (!device.is_cuda()) return planned;
  planned.available_kv_cache_bytes = static_cast<int64_t>(plan.kv_cache);
  return planned;
}

}  // namespace quire
