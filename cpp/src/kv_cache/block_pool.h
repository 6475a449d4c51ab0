// Which KV blocks of one group are free, shared or cached.
//
// A block holds the keys and values of `block_size` tokens, in every layer of the group. The pool deals in
// ids; the memory belongs to the worker. A full block stays findable by its hash after it is freed, until
// the space is needed: the least recently freed goes first, after blocks nobody could find again. All
// operations are O(1) per block.
//
// Blocks have memory an extent at a time: `blocks_per_extent` consecutive ids. Only mapped blocks are handed
// out.
//
// Not thread-safe. Owned by KVCacheManager, called on the scheduler's thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv_cache/block_hash_map.h"
#include "messages/kv_cache_spec.h"
#include "messages/recording.h"
#include "quire/kv_events.h"
#include "request/block_hash.h"

namespace quire {

class BlockPool {
 public:
  // Nothing is mapped yet. Block 0 is kept back: padded rows of a graph replay write their K/V there.
  // Throws InvalidArgument unless num_blocks >= 2 and blocks_per_extent >= 1.
  explicit BlockPool(int32_t num_blocks, int32_t blocks_per_extent = 1);

  // Takes out.size() free blocks, with one reference each, evicting cached content as needed.
  // Returns false, and changes nothing, when fewer are free.
  bool allocate(std::span<BlockId> out);

  // Adds a reference; a free block that is still cached leaves the free list.
  void share(BlockId block);

  // Drops a reference. The last one makes the block free: cached content is kept as long as possible.
  void free(BlockId block);

  // Makes a block findable under `hash`. When the same content is already cached in another block, both
  // stay; the oldest is the one found, and false is returned.
  bool cache(BlockId block, const BlockHash& hash);

  // Makes the block's content unfindable: it was never computed.
  void uncache(BlockId block) { forget(block); }
  void uncache_all();

  // The cached block of that content, or kNullBlock. Takes no reference.
  BlockId find_cached(const BlockHash& hash) const { return cached_.find(hash); }
  void prefetch(const BlockHash& hash) const { cached_.prefetch(hash); }

  // Forgets all cached content. Returns false, and changes nothing, while any block is in use.
  bool reset_prefix_cache();

  // Maps the unmapped extent with the lowest ids; false when all are mapped. Its blocks are handed out before
  // cached ones. `first_block` and `num_blocks` say which they are.
  bool map_extent(BlockId& first_block, int32_t& num_blocks);
  // The same of this one, which is unmapped.
  void map_extent_at(int32_t extent, BlockId& first_block, int32_t& num_blocks);
  // Unmaps one extent whose blocks are all free, the last of them first; false when there is none.
  bool unmap_extent(BlockId& first_block, int32_t& num_blocks);

  // How many of the next `count` blocks to be handed out hold no cached content: with more memory, the rest
  // need not lose theirs.
  int32_t count_uncached_ahead(int32_t count) const;

  int32_t num_free_blocks() const { return num_free_; }
  int32_t num_mapped_blocks() const { return num_mapped_; }
  int32_t num_extents() const { return static_cast<int32_t>(extents_.size()); }
  int32_t num_unmapped_extents() const { return num_extents() - num_mapped_extents_; }
  bool is_mapped(int32_t extent) const { return extents_[static_cast<size_t>(extent)].mapped; }
  int32_t extent_index(BlockId block) const { return (block - 1) / blocks_per_extent_; }
  int32_t num_usable_blocks() const { return static_cast<int32_t>(blocks_.size()) - 1; }
  int32_t ref_count(BlockId block) const { return blocks_[static_cast<size_t>(block)].ref_count; }
  bool is_cached(BlockId block) const { return blocks_[static_cast<size_t>(block)].cached; }

  void save(BlockPoolSnapshot& out) const;
  // Into a pool of the same size. Throws InvalidArgument for a snapshot that no such pool can have given.
  void restore(const BlockPoolSnapshot& snapshot);

  // Removals are appended there, for `group`, from now on. Null: they are not.
  void set_event_sink(std::vector<KVCacheEvent>* events, int32_t group) {
    events_ = events;
    group_ = group;
  }

 private:
  // A link of two lists: the free list (without cached content first, then the least recently freed), and the
  // ring of blocks with equal content, the oldest first.
  struct Block {
    int32_t ref_count = 0;
    bool cached = false;
    BlockId previous_free = -1, next_free = -1;
    BlockId previous_equal = -1, next_equal = -1;
    BlockHash hash;
  };
  struct Extent {
    int32_t num_in_use = 0;
    bool mapped = false;
  };

  Block& at(BlockId id) { return blocks_[static_cast<size_t>(id)]; }
  Extent& extent_of(BlockId id) { return extents_[static_cast<size_t>(extent_index(id))]; }
  void extent_range(int32_t extent, BlockId& first_block, int32_t& num_blocks) const;
  void push_free(BlockId id);
  void push_free_first(BlockId id);
  void remove_free(BlockId id);
  void forget(BlockId id);

  int32_t blocks_per_extent_;
  std::vector<Block> blocks_;
  std::vector<Extent> extents_;
  BlockId first_free_ = -1, last_free_ = -1;
  int32_t num_free_ = 0;
  int32_t num_mapped_ = 0;
  int32_t num_mapped_extents_ = 0;
  int32_t first_unmapped_ = 0;  // no extent before it is unmapped
  int32_t last_unused_ = -1;    // no mapped extent behind it is without a block in use
  BlockHashMap cached_;         // the first of each ring of equals
  std::vector<KVCacheEvent>* events_ = nullptr;
  int32_t group_ = 0;
};

}  // namespace quire
