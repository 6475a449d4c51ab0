#include "engine/kv_cache_demand.h"

#include <algorithm>

#include "kv_cache/kv_arena.h"
#include "quire/error.h"
#include "util/str.h"

namespace quire {

KVCacheDemand kv_cache_demand(const EngineConfig& config, const ModelInfo& model,
                              const std::vector<KVCacheSpec>& specs, int32_t max_in_flight_steps,
                              bool maps_on_demand, int64_t available_bytes) {
  int32_t largest_block = 0;
  for (const KVCacheSpec& spec : specs) largest_block = std::max(largest_block, spec.block_size);
  KVCacheDemand demand;
  demand.bytes = config.kv_cache_memory_bytes > 0 ? config.kv_cache_memory_bytes : available_bytes;
  demand.num_blocks = config.num_gpu_blocks_override;
  demand.max_model_len = model.max_model_len;
  // A block holds tokens of one request only.
  const int64_t blocks_of_one = (model.max_model_len + largest_block - 1) / largest_block;
  demand.max_useful_tokens = config.max_num_seqs.value_or(model.max_num_seqs) * blocks_of_one * largest_block;
  demand.max_tokens_in_flight =
      config.max_num_batched_tokens.value_or(model.max_num_batched_tokens) * max_in_flight_steps;
  demand.stays = !maps_on_demand;
  if (config.kv_arena) {
    demand.bytes = config.kv_arena->bytes();
    demand.shared = true;
  }
  return demand;
}

KVCacheConfig plan_engine_kv_cache(const EngineConfig& config, const std::vector<KVCacheSpec>& specs,
                                   const KVCacheDemand& demand) {
  KVCacheConfig kv_cache = plan_kv_cache(specs, demand);
  const int32_t num_usable_blocks = kv_cache.groups[0].num_blocks - 1;
  if (config.max_num_seqs && *config.max_num_seqs > num_usable_blocks) {
    throw InvalidArgument(str("max_num_seqs ", *config.max_num_seqs, " is more than the KV cache's ",
                              num_usable_blocks,
                              " blocks can ever hold: lower it, or make the KV cache larger"));
  }
  return kv_cache;
}

int32_t seqs_at_once(const EngineConfig& config, const ModelInfo& model, int32_t num_usable_blocks) {
  return config.max_num_seqs.value_or(std::min(model.max_num_seqs, num_usable_blocks));
}

}  // namespace quire
