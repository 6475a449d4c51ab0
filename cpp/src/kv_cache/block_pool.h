// Which KV blocks are free, shared or cached.
//
// A block holds the keys and values of `block_size` tokens, in every layer of one group. The pool deals in
// ids; the memory belongs to the worker. A full block stays findable by its hash after it is freed, until
// the space is needed: the least recently freed goes first. All operations are O(1) per block.
//
// Not thread-safe. Owned by KVCacheManager, called on the scheduler's thread.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "messages/kv_cache_spec.h"
#include "request/block_hash.h"

namespace quire {

class BlockPool {
 public:
  // Block 0 is kept back: padded rows of a graph replay write their K/V there.
  // Throws InvalidArgument unless num_blocks >= 2.
  explicit BlockPool(int32_t num_blocks);

  // Takes out.size() free blocks, with one reference each, evicting cached content as needed.
  // Returns false, and changes nothing, when fewer are free.
  bool allocate(std::span<BlockId> out);

  // Adds a reference; a free block that is still cached leaves the free list.
  void share(BlockId block);

  // Drops a reference. The last one makes the block free: cached content is kept as long as possible.
  void free(BlockId block);

  // Makes a block findable under `hash`, for `group`. When the same content is already cached in another
  // block, both stay; the first is the one found.
  void cache(BlockId block, const BlockHash& hash, int32_t group);

  // Makes the block's content unfindable: it was never computed.
  void uncache(BlockId block) { forget(block); }

  void uncache_all();

  // The cached block of that content, or kNullBlock. Takes no reference.
  BlockId find_cached(const BlockHash& hash, int32_t group) const;

  // Forgets all cached content. Returns false, and changes nothing, while any block is in use.
  bool reset_prefix_cache();

  int32_t num_free_blocks() const { return num_free_; }
  int32_t num_usable_blocks() const { return static_cast<int32_t>(blocks_.size()) - 1; }
  int32_t ref_count(BlockId block) const { return blocks_[static_cast<size_t>(block)].ref_count; }

 private:
  struct Key {
    BlockHash hash;
    int32_t group;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const noexcept {
      return key.hash.low + static_cast<size_t>(key.group) * 0x9E3779B97F4A7C15;
    }
  };
  // A link of two lists: the free list (least recently freed first), and the blocks of equal content.
  struct Block {
    int32_t ref_count = 0;
    bool cached = false;
    BlockId previous_free = -1, next_free = -1;
    BlockId previous_equal = -1, next_equal = -1;
    Key key{};
  };

  Block& at(BlockId id) { return blocks_[static_cast<size_t>(id)]; }
  void push_free(BlockId id);
  void remove_free(BlockId id);
  void forget(BlockId id);

  std::vector<Block> blocks_;
  BlockId first_free_ = -1, last_free_ = -1;
  int32_t num_free_ = 0;
  std::unordered_map<Key, BlockId, KeyHash> cached_;  // the first of each list of equals
};

}  // namespace quire
