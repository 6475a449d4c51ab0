#include "executor/executor.h"
#include "executor/resolved_config.h"
#include "models/model_registry.h"
#include "worker/planned_worker.h"

namespace quire {

PlannedRank plan_rank(const EngineConfig& config, const PlannedDevice& device) {
  const Backend backend = with_jump_forward(config, planned_backend(device));
  const HfConfig hf_config = load_model_config(config);
  PlannedRank planned;
  ModelInfo& info = planned.model_info;
  info.architecture = hf_config.get_strings("architectures").at(0);
  info.max_model_len = resolve_max_model_len(config, hf_config);
  const StepLimits limits = step_limits(config, backend, info.max_model_len);
  info.max_num_seqs = limits.max_num_seqs;
  info.max_num_batched_tokens = limits.max_num_batched_tokens;
  info.backend = backend.name();
  PlannedWorker worker = plan_worker(config, backend, device, hf_config, info.max_model_len);
  info.dtype = dtype_name(worker.dtype);
  planned.kv_cache_specs = std::move(worker.measure.kv_cache_specs);
  planned.max_in_flight_steps = worker.max_in_flight_steps;
  planned.maps_kv_cache_on_demand = worker.maps_kv_cache_on_demand;
  planned.available_kv_cache_bytes = worker.available_kv_cache_bytes;
  planned.refusal = std::move(worker.refusal);
  DeviceMemoryPlan& plan = worker.measure.plan;
  planned.budget_bytes = static_cast<int64_t>(plan.budget);
  plan.kv_cache = 0;
  info.memory = plan.rank_memory();
  info.activation_bytes = info.memory.activations + info.memory.workspace;
  return planned;
}

}  // namespace quire
