// The KV cache's bookkeeping, saved and restored: where a recording begins.
#include <algorithm>

#include "kv_cache/kv_cache_manager.h"
#include "util/check.h"

namespace quire {
namespace {

void require(bool ok, const char* what) {
  if (!ok) throw InvalidArgument(str("snapshot: ", what));
}

}  // namespace

void BlockPool::save(BlockPoolSnapshot& out) const {
  for (const Block& block : blocks_) {
    out.ref_counts.push_back(block.ref_count);
    out.hashes.push_back(block.cached ? KVBlockHash{block.hash.high, block.hash.low} : KVBlockHash{});
  }
  for (BlockId id = 1; id <= num_usable_blocks(); ++id) {
    const Block& block = blocks_[static_cast<size_t>(id)];
    if (!block.cached || cached_.find(block.hash) != id) continue;
    BlockId equal = id;
    do {
      out.cached.push_back(equal);
      equal = blocks_[static_cast<size_t>(equal)].next_equal;
    } while (equal != id);
  }
  for (BlockId id = first_free_; id >= 0; id = blocks_[static_cast<size_t>(id)].next_free)
    out.free.push_back(id);
  for (const Extent& extent : extents_) out.mapped_extents.push_back(extent.mapped);
}

void BlockPool::restore(const BlockPoolSnapshot& snapshot) {
  require(snapshot.ref_counts.size() == blocks_.size() && snapshot.hashes.size() == blocks_.size() &&
              snapshot.mapped_extents.size() == extents_.size(),
          "a pool of another size");
  const auto is_block = [this](BlockId id) { return id > kNullBlock && id <= num_usable_blocks(); };
  uncache_all();
  while (first_free_ >= 0) remove_free(first_free_);
  num_mapped_ = num_mapped_extents_ = first_unmapped_ = 0;
  for (size_t i = 0; i < extents_.size(); ++i) {
    extents_[i] = {0, snapshot.mapped_extents[i] != 0};
    if (!extents_[i].mapped) continue;
    BlockId first_block = 0;
    int32_t num_blocks = 0;
    extent_range(static_cast<int32_t>(i), first_block, num_blocks);
    num_mapped_ += num_blocks;
    ++num_mapped_extents_;
  }
  for (BlockId id = 1; id <= num_usable_blocks(); ++id) {
    at(id).ref_count = snapshot.ref_counts[static_cast<size_t>(id)];
    require(at(id).ref_count >= 0, "a negative reference count");
    if (at(id).ref_count > 0) {
      require(extent_of(id).mapped, "a block in use has no memory");
      ++extent_of(id).num_in_use;
    }
  }
  std::vector<uint8_t> seen(blocks_.size());
  for (BlockId id : snapshot.free) {
    require(is_block(id) && at(id).ref_count == 0 && extent_of(id).mapped && !seen[static_cast<size_t>(id)]++,
            "a free list that is none");
    push_free(id);
  }
  std::fill(seen.begin(), seen.end(), uint8_t{0});
  for (BlockId id : snapshot.cached) {
    require(is_block(id) && extent_of(id).mapped && !seen[static_cast<size_t>(id)]++,
            "a cached block that is none");
    const KVBlockHash& hash = snapshot.hashes[static_cast<size_t>(id)];
    // cache() wants an owner: a free block gets one for the moment.
    const int32_t ref_count = std::exchange(at(id).ref_count, 1);
    cache(id, {hash[0], hash[1]});
    at(id).ref_count = ref_count;
  }
}

void KVCacheManager::save(SchedulerSnapshot& out) const {
  for (const Group& group : groups_) group.pool.save(out.pools.emplace_back());
  out.bytes_held = arena_member_->bytes_held();
  out.spare_bytes = spare_bytes_;
  out.num_holders = num_holders_;
  out.num_wasted_slots = num_wasted_slots_;
  out.extents = extents_;
}

void KVCacheManager::restore(const SchedulerSnapshot& snapshot) {
  require(snapshot.pools.size() == groups_.size(), "another number of KV groups");
  for (size_t g = 0; g < groups_.size(); ++g) groups_[g].pool.restore(snapshot.pools[g]);
  if (shares_memory_) {
    arena_member_->give_back(arena_member_->bytes_held());
    require(snapshot.bytes_held >= 0 && arena_member_->take(snapshot.bytes_held),
            "more memory than there is");
  }
  spare_bytes_ = snapshot.spare_bytes;
  num_holders_ = snapshot.num_holders;
  num_wasted_slots_ = snapshot.num_wasted_slots;
  extents_ = snapshot.extents;
}

}  // namespace quire
