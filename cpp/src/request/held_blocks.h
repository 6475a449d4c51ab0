// What a request holds of the KV cache.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "messages/block_ids.h"

namespace quire {

// What a request holds of one KV cache group.
struct RequestBlocks {
  std::vector<BlockId> ids;  // kNullBlock where nothing is kept: behind a window, or between two states
  int32_t num_cached = 0;    // leading blocks that were made findable by hash, or never will be
  int32_t num_skipped = 0;   // leading blocks that were given back: nothing will read them again
  int32_t num_sent = 0;      // leading blocks that the workers know
  // State groups: a step ended here, so the block before it holds this very state.
  int32_t num_exact_tokens = 0;
};

// What a request holds of all groups. Everybody may look; only the KVCacheManager changes it.
class HeldBlocks {
 public:
  // One for each group, or none before the first blocks were given.
  std::span<const RequestBlocks> groups() const { return groups_; }

 private:
  friend class KVCacheManager;
  friend class Request;  // makes room

  void make_room(size_t num_blocks) {
    for (RequestBlocks& held : groups_) held.ids.reserve(num_blocks);
  }

  std::vector<RequestBlocks> groups_;
  bool has_unsent_ = false;  // some that the workers do not know
};

}  // namespace quire
