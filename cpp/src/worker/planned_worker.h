#pragma once

#include "formats/hf_config.h"
#include "quire/engine_config.h"
#include "quire/memory_plan.h"
#include "worker/model_builder.h"

namespace quire {

// What a worker would be: found by the code that it is made with, without memory or a device.
struct PlannedWorker {
  DType dtype = DType::kFloat32;
  int32_t max_in_flight_steps = 1;
  bool maps_kv_cache_on_demand = true;
  ModelBuilder::Measure measure;  // with the budget
  int64_t available_kv_cache_bytes = 0;
  std::string refusal;  // of the memory; empty: there is enough for all but the KV cache
};
// Throws as Worker for what has nothing to do with memory.
PlannedWorker plan_worker(const EngineConfig& config, const Backend& backend, const PlannedDevice& device,
                          const HfConfig& hf_config, int32_t max_model_len);

}  // namespace quire
