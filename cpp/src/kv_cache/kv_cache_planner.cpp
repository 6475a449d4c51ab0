#include "kv_cache/kv_cache_planner.h"

#include <algorithm>
#include <limits>

#include "util/check.h"

namespace quire {

KVCacheConfig plan_kv_cache(const std::vector<KVCacheSpec>& layers, int64_t bytes, int32_t num_blocks,
                            int32_t max_model_len, int64_t max_useful_tokens) {
  KVCacheConfig config;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    auto group = std::find_if(config.groups.begin(), config.groups.end(),
                              [&](const KVCacheGroup& g) { return g.spec == layers[layer]; });
    if (group == config.groups.end()) {
      config.groups.push_back({layers[layer], {}});
      group = config.groups.end() - 1;
    }
    group->layers.push_back(static_cast<int32_t>(layer));
  }
  QUIRE_CHECK(!config.groups.empty());
  const int64_t block_bytes = config.block_bytes();
  const auto num_groups = static_cast<int64_t>(config.groups.size());
  const int64_t block_size = config.groups[0].spec.block_size;
  const auto blocks_for = [&](int64_t tokens) { return (tokens + block_size - 1) / block_size * num_groups; };
  int64_t count = num_blocks;
  if (count == 0) {
    // Every request ends in a block that is partly empty; block 0 is kept back.
    const int64_t useful = blocks_for(max_useful_tokens) + 1;
    count = std::min({bytes / block_bytes, useful, int64_t{std::numeric_limits<int32_t>::max()}});
  }
  const int64_t needed = blocks_for(max_model_len) + 1;
  if (count < needed) {
    const int64_t fits = std::max<int64_t>(count - 1, 0) / num_groups * block_size;
    throw InvalidArgument(str("the KV cache holds ", fits, " tokens (", count, " blocks of ", block_size,
                              "), one sequence of max_model_len ", max_model_len, " needs ",
                              needed * block_bytes, " bytes (", needed,
                              " blocks): lower max_model_len, or raise ",
                              num_blocks > 0 ? "num_gpu_blocks_override" : "kv_cache_memory_bytes"));
  }
  config.num_blocks = static_cast<int32_t>(count);
  return config;
}

}  // namespace quire
