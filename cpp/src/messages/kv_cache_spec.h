// What a model's layers need of the KV cache, and how the deciding half divides the memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "messages/archive.h"

namespace quire {

using BlockId = int32_t;

// Padded rows of a graph replay write here; never handed out.
inline constexpr BlockId kNullBlock = 0;

enum class KVCacheKind : uint8_t { kFullAttention, kSlidingWindow, kMlaLatent, kState };

// One layer's demand. The page layout is named by the backend that reads it.
struct KVCacheSpec {
  KVCacheKind kind = KVCacheKind::kFullAttention;
  int32_t block_size = 0;    // tokens a block
  int64_t page_bytes = 0;    // bytes of one block in this layer, on one rank
  int32_t num_kv_heads = 0;  // on one rank
  int32_t head_size = 0;
  std::string dtype;
  std::string layout;          // "cpu"
  int32_t sliding_window = 0;  // kSlidingWindow only

  template <class A>
  void fields(A& a) {
    a(kind, block_size, page_bytes, num_kv_heads, head_size, dtype, layout, sliding_window);
  }
  bool operator==(const KVCacheSpec&) const = default;
};

// Layers that share one block table: their blocks are allocated and freed together.
struct KVCacheGroup {
  KVCacheSpec spec;
  std::vector<int32_t> layers;

  template <class A>
  void fields(A& a) {
    a(spec, layers);
  }
};

struct KVCacheConfig {
  int32_t num_blocks = 0;  // block 0 included
  std::vector<KVCacheGroup> groups;

  template <class A>
  void fields(A& a) {
    a(num_blocks, groups);
  }
  // Bytes that one block takes in all layers.
  int64_t block_bytes() const {
    int64_t bytes = 0;
    for (const KVCacheGroup& group : groups) {
      bytes += group.spec.page_bytes * static_cast<int64_t>(group.layers.size());
    }
    return bytes;
  }
};

}  // namespace quire
