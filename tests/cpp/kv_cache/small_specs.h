// Layers with blocks of four tokens: numbers small enough to check by hand.
#pragma once

#include "messages/kv_cache_spec.h"

namespace quire {

inline constexpr int32_t kBlockSize = 4;

inline KVCacheSpec spec_of(KVCacheKind kind = KVCacheKind::kFullAttention, int32_t sliding_window = 0,
                           int32_t block_size = kBlockSize) {
  KVCacheSpec spec;
  spec.kind = kind;
  spec.block_size = block_size;
  spec.page_bytes = 4096;
  spec.sliding_window = sliding_window;
  return spec;
}

}  // namespace quire
