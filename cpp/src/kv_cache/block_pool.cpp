#include "kv_cache/block_pool.h"

#include "util/check.h"

namespace quire {

BlockPool::BlockPool(int32_t num_blocks) {
  if (num_blocks < 2) {
    throw InvalidArgument(str("num_blocks must be at least 2 (block 0 is kept back), got ", num_blocks));
  }
  blocks_.resize(static_cast<size_t>(num_blocks));
  cached_.reserve(blocks_.size());
  for (BlockId id = 1; id < num_blocks; ++id) push_free(id);
}

bool BlockPool::allocate(std::span<BlockId> out) {
  if (out.size() > static_cast<size_t>(num_free_)) return false;
  for (BlockId& id : out) {
    id = first_free_;
    remove_free(id);
    forget(id);
    at(id).ref_count = 1;
  }
  return true;
}

void BlockPool::share(BlockId block) {
  QUIRE_CHECK(block > kNullBlock && block <= num_usable_blocks(), "block ", block);
  if (at(block).ref_count++ == 0) remove_free(block);
}

void BlockPool::free(BlockId block) {
  QUIRE_CHECK(block > kNullBlock && block <= num_usable_blocks(), "block ", block);
  QUIRE_CHECK(at(block).ref_count > 0, "block ", block, " is already free");
  if (--at(block).ref_count == 0) push_free(block);
}

void BlockPool::cache(BlockId block, const BlockHash& hash, int32_t group) {
  Block& entry = at(block);
  QUIRE_CHECK(entry.ref_count > 0 && !entry.cached, "block ", block);
  entry.cached = true;
  entry.key = {hash, group};
  const auto [found, inserted] = cached_.try_emplace(entry.key, block);
  if (inserted) return;
  // Behind the first: its position in the list does not matter as long as the first stays first.
  Block& first = at(found->second);
  entry.previous_equal = found->second;
  entry.next_equal = first.next_equal;
  if (first.next_equal >= 0) at(first.next_equal).previous_equal = block;
  first.next_equal = block;
}

BlockId BlockPool::find_cached(const BlockHash& hash, int32_t group) const {
  const auto found = cached_.find({hash, group});
  return found == cached_.end() ? kNullBlock : found->second;
}

bool BlockPool::reset_prefix_cache() {
  if (num_free_ != num_usable_blocks()) return false;
  uncache_all();
  return true;
}

void BlockPool::uncache_all() {
  for (Block& block : blocks_) {
    block.cached = false;
    block.previous_equal = block.next_equal = -1;
  }
  cached_.clear();
}

void BlockPool::push_free(BlockId id) {
  Block& block = at(id);
  block.previous_free = last_free_;
  block.next_free = -1;
  (last_free_ >= 0 ? at(last_free_).next_free : first_free_) = id;
  last_free_ = id;
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
  if (block.previous_equal >= 0) {
    at(block.previous_equal).next_equal = block.next_equal;
  } else if (block.next_equal >= 0) {
    cached_.find(block.key)->second = block.next_equal;
  } else {
    cached_.erase(block.key);
  }
  if (block.next_equal >= 0) at(block.next_equal).previous_equal = block.previous_equal;
  block.previous_equal = block.next_equal = -1;
  block.cached = false;
}

}  // namespace quire
