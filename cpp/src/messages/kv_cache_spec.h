// What a model's layers need of the KV cache, and how the deciding half divides the memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "messages/archive.h"

namespace quire {

using BlockId = int32_t;

// Padded rows of a graph replay write here; never handed out.
inline constexpr BlockId kNullBlock = 0;

// What must be kept of a sequence: every token's page (MLA latent: one compressed page for keys and values),
// those inside the window, or the state after the last token (SSM, linear attention).
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
  int32_t num_blocks = 0;         // as many as could ever be mapped, block 0 included
  int32_t blocks_per_extent = 1;  // mapped and unmapped together

  // One block, in all of the group's layers. A block's pages lie next to each other, so that an extent is
  // one range of addresses.
  int64_t block_bytes() const { return spec.page_bytes * static_cast<int64_t>(layers.size()); }
  int64_t extent_bytes() const { return block_bytes() * blocks_per_extent; }

  template <class A>
  void fields(A& a) {
    a(spec, layers, num_blocks, blocks_per_extent);
  }
};

// Every group has block ids of its own, from 1 to num_blocks - 1, in address space of its own, or, overlaid,
// in one that is all groups': their extents have the same bytes, and extent i of each begins where the
// others' do. Memory is shared: `bytes` may be spread over the groups in any way, a whole extent at a time.
struct KVCacheConfig {
  std::vector<KVCacheGroup> groups;
  int64_t bytes = 0;      // all groups together may have this much mapped; block 0 is not counted
  int64_t min_bytes = 0;  // what one sequence of max_model_len needs
  bool shared = false;    // some of `bytes` may be mapped elsewhere: by another group, or another engine
  bool overlaid = false;  // an extent is mapped by one group at a time, and nothing is to be done for it

  // The most that is ever taken. Where blocks are mapped when they are used, groups that share memory have
  // more of them than can be in use.
  int64_t memory_bytes(bool maps_on_demand) const {
    if (overlaid) return bytes + largest_block_bytes();
    int64_t first_blocks = 0, all_blocks = 0;
    for (const KVCacheGroup& group : groups) {
      first_blocks += group.block_bytes();
      all_blocks += group.block_bytes() * group.num_blocks;
    }
    return shared && maps_on_demand ? bytes + first_blocks : all_blocks;
  }

  // Where a group's block 0 begins in overlaid memory: blocks 1 begin together, behind all blocks 0.
  int64_t overlaid_begin(const KVCacheGroup& group) const {
    return largest_block_bytes() - group.block_bytes();
  }

  template <class A>
  void fields(A& a) {
    a(groups, bytes, min_bytes, shared, overlaid);
  }

 private:
  int64_t largest_block_bytes() const {
    int64_t largest = 0;
    for (const KVCacheGroup& group : groups) largest = std::max(largest, group.block_bytes());
    return largest;
  }
};

}  // namespace quire
