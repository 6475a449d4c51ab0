// Where the KV cache's blocks get memory from, and to whom they lend it.
#include <algorithm>

#include "kv_cache/kv_cache_manager.h"
#include "util/check.h"

namespace quire {

// Memory for every group's num_needed free blocks, or false: first what is mapped, then the arena's, then
// what other groups of this engine have to spare.
bool KVCacheManager::make_room() {
  if (!shares_memory_) return groups_[0].num_needed <= groups_[0].pool.num_free_blocks();
  int64_t missing_bytes = 0;
  for (Group& group : groups_) {
    const int32_t deficit = group.num_needed - group.pool.num_free_blocks();
    if (deficit <= 0) continue;
    const int32_t num_extents = (deficit + group.blocks_per_extent - 1) / group.blocks_per_extent;
    if (num_extents > group.pool.num_unmapped_extents()) return false;
    missing_bytes += num_extents * group.extent_bytes;
  }
  if (missing_bytes > spare_bytes_ && arena_member_->take(missing_bytes - spare_bytes_)) {
    spare_bytes_ = missing_bytes;
  }
  for (size_t g = 0; g < groups_.size() && spare_bytes_ < missing_bytes; ++g) {
    Group& group = groups_[g];
    BlockId first_block = 0;
    int32_t num_blocks = 0;
    while (spare_bytes_ < missing_bytes &&
           group.pool.num_free_blocks() - group.blocks_per_extent >= group.num_needed &&
           group.pool.unmap_extent(first_block, num_blocks)) {
      add_extent(g, first_block, num_blocks, /*map=*/false);
      spare_bytes_ += group.extent_bytes;
    }
  }
  if (spare_bytes_ < missing_bytes) return false;
  for (Group& group : groups_) {
    const int32_t deficit = group.num_needed - group.pool.num_free_blocks();
    if (deficit > 0) QUIRE_CHECK(map_blocks(group, deficit));
    // While there is memory nobody uses, cached prefixes need not go.
    while (group.pool.count_uncached_ahead(group.num_new) < group.num_new &&
           group.pool.num_unmapped_extents() > 0 && arena_member_->bytes_available() >= group.extent_bytes &&
           arena_member_->take(group.extent_bytes)) {
      spare_bytes_ += group.extent_bytes;
      QUIRE_CHECK(map_blocks(group, 1));
    }
  }
  return true;
}

// Maps extents, out of spare_bytes_ where memory is shared, until `num_blocks` more are free.
bool KVCacheManager::map_blocks(Group& group, int32_t num_blocks) {
  while (num_blocks > 0) {
    BlockId first_block = 0;
    int32_t num_mapped = 0;
    if (overlaid_) {
      group.pool.map_extent_at(find_overlaid_extent(), first_block, num_mapped);
    } else if (!group.pool.map_extent(first_block, num_mapped)) {
      return false;
    }
    if (shares_memory_) spare_bytes_ -= group.extent_bytes;
    add_extent(static_cast<size_t>(&group - groups_.data()), first_block, num_mapped, /*map=*/true);
    num_blocks -= num_mapped;
  }
  return true;
}

// One that no group has mapped: as long as there are bytes to be had, there is one.
int32_t KVCacheManager::find_overlaid_extent() {
  while (first_overlaid_ < overlaid_extents_.size() && overlaid_extents_[first_overlaid_] != 0)
    ++first_overlaid_;
  QUIRE_CHECK(first_overlaid_ < overlaid_extents_.size());
  return static_cast<int32_t>(first_overlaid_);
}

void KVCacheManager::add_extent(size_t group, BlockId first_block, int32_t num_blocks, bool map) {
  if (overlaid_) {
    // The workers have nothing to do: what a step before still writes comes before what a later one writes.
    const auto extent = static_cast<size_t>(groups_[group].pool.extent_index(first_block));
    overlaid_extents_[extent] = map ? 1 : 0;
    if (!map) first_overlaid_ = std::min(first_overlaid_, extent);
    return;
  }
  if (!extents_.empty()) {
    KVExtent& last = extents_.back();
    if (last.group == static_cast<int32_t>(group) && (last.map != 0) == map &&
        last.first_block + last.num_blocks == first_block) {
      last.num_blocks += num_blocks;
      return;
    }
  }
  extents_.push_back({static_cast<int32_t>(group), first_block, num_blocks, static_cast<uint8_t>(map)});
}

void KVCacheManager::take_extents(std::vector<KVExtent>& out) {
  out.clear();
  out.swap(extents_);
}

bool KVCacheManager::memory_is_wanted() const {
  return arena_is_shared_ && arena_member_->bytes_held() - bytes_being_lent_ > arena_member_->min_bytes() &&
         arena_member_->is_wanted();
}

int64_t KVCacheManager::lend() {
  if (!arena_is_shared_) return 0;
  const int64_t surplus = arena_member_->bytes_held() - bytes_being_lent_ - arena_member_->min_bytes();
  const int64_t wanted = std::min(arena_member_->bytes_wanted_by_others() - bytes_being_lent_, surplus);
  if (wanted <= 0) return 0;
  for (size_t g = groups_.size(); g-- > 0 && spare_bytes_ < wanted;) {
    BlockId first_block = 0;
    int32_t num_blocks = 0;
    while (spare_bytes_ < wanted && groups_[g].pool.unmap_extent(first_block, num_blocks)) {
      add_extent(g, first_block, num_blocks, /*map=*/false);
      spare_bytes_ += groups_[g].extent_bytes;
    }
  }
  const int64_t lent = std::min(spare_bytes_, surplus);
  spare_bytes_ -= lent;
  bytes_being_lent_ += lent;
  return lent;
}

void KVCacheManager::give_back(int64_t bytes) {
  if (bytes == 0) return;
  bytes_being_lent_ -= bytes;
  arena_member_->give_back(bytes);
}

}  // namespace quire
