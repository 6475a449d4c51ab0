#include "kv_cache/block_pool.h"

#include <algorithm>

#include "util/check.h"

namespace quire {

BlockPool::BlockPool(int32_t num_blocks, int32_t blocks_per_extent)
    : blocks_per_extent_(blocks_per_extent), cached_(num_blocks) {
  if (num_blocks < 2) {
    throw InvalidArgument(str("num_blocks must be at least 2 (block 0 is kept back), got ", num_blocks));
  }
  if (blocks_per_extent < 1) {
    throw InvalidArgument(str("blocks_per_extent must be at least 1, got ", blocks_per_extent));
  }
  blocks_.resize(static_cast<size_t>(num_blocks));
  extents_.resize(static_cast<size_t>((num_blocks - 1 + blocks_per_extent - 1) / blocks_per_extent));
}

bool BlockPool::allocate(std::span<BlockId> out) {
  if (out.size() > static_cast<size_t>(num_free_)) return false;
  for (BlockId& id : out) {
    id = first_free_;
    remove_free(id);
    forget(id);
    at(id).ref_count = 1;
    ++extent_of(id).num_in_use;
  }
  // The list goes all over the blocks: what the next call looks at is on its way when it comes.
  if (first_free_ >= 0) {
    const Block& next = at(first_free_);
    if (next.cached) cached_.prefetch(next.hash);
    if (next.next_free >= 0) __builtin_prefetch(&at(next.next_free));
  }
  return true;
}

void BlockPool::share(BlockId block) {
  QUIRE_CHECK(block > kNullBlock && block <= num_usable_blocks(), "block ", block);
  if (at(block).ref_count++ > 0) return;
  QUIRE_CHECK(extent_of(block).mapped, "block ", block, " has no memory");
  remove_free(block);
  ++extent_of(block).num_in_use;
}

void BlockPool::free(BlockId block) {
  QUIRE_CHECK(block > kNullBlock && block <= num_usable_blocks(), "block ", block);
  QUIRE_CHECK(at(block).ref_count > 0, "block ", block, " is already free");
  if (--at(block).ref_count > 0) return;
  // Content that nobody can find is overwritten first.
  if (at(block).cached) {
    push_free(block);
  } else {
    push_free_first(block);
  }
  if (--extent_of(block).num_in_use == 0) last_unused_ = std::max(last_unused_, extent_index(block));
}

bool BlockPool::cache(BlockId block, const BlockHash& hash) {
  Block& entry = at(block);
  QUIRE_CHECK(entry.ref_count > 0 && !entry.cached, "block ", block);
  entry.cached = true;
  entry.hash = hash;
  const BlockId found = cached_.find(hash);
  if (found == kNullBlock) {
    entry.previous_equal = entry.next_equal = block;
    cached_.set(hash, block);
    return true;
  }
  // At the end of the ring: the next oldest is found once the first is gone.
  Block& first = at(found);
  entry.next_equal = found;
  entry.previous_equal = first.previous_equal;
  at(first.previous_equal).next_equal = block;
  first.previous_equal = block;
  return false;
}

bool BlockPool::reset_prefix_cache() {
  if (num_free_ != num_mapped_) return false;
  uncache_all();
  return true;
}

void BlockPool::uncache_all() {
  for (Block& block : blocks_) {
    block.cached = false;
    block.previous_equal = block.next_equal = -1;
  }
  cached_.clear();
  if (events_) {
    events_->emplace_back();
    events_->back().kind = KVCacheEventKind::kAllBlocksCleared;
    events_->back().group = group_;
  }
}

void BlockPool::extent_range(int32_t extent, BlockId& first_block, int32_t& num_blocks) const {
  first_block = 1 + extent * blocks_per_extent_;
  num_blocks = std::min(blocks_per_extent_, static_cast<int32_t>(blocks_.size()) - first_block);
}

bool BlockPool::map_extent(BlockId& first_block, int32_t& num_blocks) {
  while (first_unmapped_ < num_extents() && extents_[static_cast<size_t>(first_unmapped_)].mapped)
    ++first_unmapped_;
  if (first_unmapped_ == num_extents()) return false;
  map_extent_at(first_unmapped_, first_block, num_blocks);
  return true;
}

void BlockPool::map_extent_at(int32_t extent, BlockId& first_block, int32_t& num_blocks) {
  QUIRE_CHECK(!is_mapped(extent), "extent ", extent);
  extents_[static_cast<size_t>(extent)].mapped = true;
  ++num_mapped_extents_;
  last_unused_ = std::max(last_unused_, extent);
  extent_range(extent, first_block, num_blocks);
  if (last_free_ >= 0 && at(last_free_).cached) {
    for (BlockId id = first_block + num_blocks - 1; id >= first_block; --id) push_free_first(id);
  } else {
    for (BlockId id = first_block; id < first_block + num_blocks; ++id) push_free(id);
  }
  num_mapped_ += num_blocks;
}

bool BlockPool::unmap_extent(BlockId& first_block, int32_t& num_blocks) {
  const auto is_unused = [this](int32_t i) {
    const Extent& extent = extents_[static_cast<size_t>(i)];
    return extent.mapped && extent.num_in_use == 0;
  };
  while (last_unused_ >= 0 && !is_unused(last_unused_)) --last_unused_;
  if (last_unused_ < 0) return false;
  const int32_t extent = last_unused_;
  extents_[static_cast<size_t>(extent)].mapped = false;
  --num_mapped_extents_;
  first_unmapped_ = std::min(first_unmapped_, extent);
  extent_range(extent, first_block, num_blocks);
  for (BlockId id = first_block; id < first_block + num_blocks; ++id) {
    remove_free(id);
    forget(id);
  }
  num_mapped_ -= num_blocks;
  return true;
}

int32_t BlockPool::count_uncached_ahead(int32_t count) const {
  int32_t num_uncached = 0;
  for (BlockId id = first_free_; id >= 0 && num_uncached < count; ++num_uncached) {
    const Block& block = blocks_[static_cast<size_t>(id)];
    if (block.cached) break;
    id = block.next_free;
  }
  return num_uncached;
}

void BlockPool::push_free(BlockId id) {
  Block& block = at(id);
  block.previous_free = last_free_;
  block.next_free = -1;
  (last_free_ >= 0 ? at(last_free_).next_free : first_free_) = id;
  last_free_ = id;
  ++num_free_;
}

void BlockPool::push_free_first(BlockId id) {
  Block& block = at(id);
  block.previous_free = -1;
  block.next_free = first_free_;
  (first_free_ >= 0 ? at(first_free_).previous_free : last_free_) = id;
  first_free_ = id;
  ++num_free_;
}

void BlockPool::remove_free(BlockId id) {
  Block& block = at(id);
  (block.previous_free >= 0 ? at(block.previous_free).next_free : first_free_) = block.next_free;
  (block.next_free >= 0 ? at(block.next_free).previous_free : last_free_) = block.previous_free;
  block.previous_free = block.next_free = -1;
  --num_free_;
}

void BlockPool::forget(BlockId id) {
  Block& block = at(id);
  if (!block.cached) return;
  if (block.next_equal != id) {
    at(block.previous_equal).next_equal = block.next_equal;
    at(block.next_equal).previous_equal = block.previous_equal;
    if (cached_.find(block.hash) == id) cached_.set(block.hash, block.next_equal);
  } else {
    cached_.erase(block.hash);
    if (events_) {
      if (events_->empty() || events_->back().kind != KVCacheEventKind::kBlockRemoved ||
          events_->back().group != group_) {
        events_->emplace_back();
        events_->back().kind = KVCacheEventKind::kBlockRemoved;
        events_->back().group = group_;
      }
      events_->back().block_hashes.push_back({block.hash.high, block.hash.low});
    }
  }
  block.previous_equal = block.next_equal = -1;
  block.cached = false;
}

}  // namespace quire
