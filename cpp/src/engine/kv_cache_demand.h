#pragma once

#include <cstdint>
#include <vector>

#include "kv_cache/kv_cache_planner.h"
#include "messages/model_info.h"
#include "quire/engine_config.h"

namespace quire {

// What an engine asks the planner of the KV cache for. `available_bytes` where config does not say how many.
KVCacheDemand kv_cache_demand(const EngineConfig& config, const ModelInfo& model,
                              const std::vector<KVCacheSpec>& specs, int32_t max_in_flight_steps,
                              bool maps_on_demand, int64_t available_bytes);

// plan_kv_cache, and that it is enough for config.max_num_seqs, where it has a value. Throws InvalidArgument.
KVCacheConfig plan_engine_kv_cache(const EngineConfig& config, const std::vector<KVCacheSpec>& specs,
                                   const KVCacheDemand& demand);

// How many requests run at once: as config says, else as many as a step may have and blocks are there for.
int32_t seqs_at_once(const EngineConfig& config, const ModelInfo& model, int32_t num_usable_blocks);

}  // namespace quire
