// The arithmetic of the KV cache: layers to groups, bytes to blocks.
#pragma once

#include <cstdint>
#include <vector>

#include "messages/kv_cache_spec.h"

namespace quire {

// Layers of equal specs share a group, hence a block table. `num_blocks` blocks, or as many as fit into
// `bytes` when it is 0. No more blocks than `max_useful_tokens` can fill. Throws InvalidArgument when one
// sequence of `max_model_len` tokens does not fit, with what would do.
KVCacheConfig plan_kv_cache(const std::vector<KVCacheSpec>& layers, int64_t bytes, int32_t num_blocks,
                            int32_t max_model_len, int64_t max_useful_tokens);

}  // namespace quire
