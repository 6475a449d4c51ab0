// The KV cache's bookkeeping, saved and restored: where a recording begins.
#include <algorithm>
#include <utility>

#include "kv_cache/kv_cache_manager.h"
#include "util/check.h"

namespace quire {
namespace {

void require(bool ok, const char* what) {
  if (!ok) throw InvalidArgument(str("snapshot: ", what));
}

// Runs of consecutive numbers: (first, count).
void append_to_runs(std::vector<std::pair<int32_t, int32_t>>& runs, int32_t value) {
  if (!runs.empty() && runs.back().first + runs.back().second == value) {
    ++runs.back().second;
  } else {
    runs.emplace_back(value, 1);
  }
}

}  // namespace

void BlockPool::save(BlockPoolSnapshot& out) const {
  out.num_blocks = static_cast<int32_t>(blocks_.size());
  for (BlockId id = 1; id <= num_usable_blocks(); ++id) {
    const Block& block = blocks_[static_cast<size_t>(id)];
    if (block.ref_count > 0) out.ref_counts.emplace_back(id, block.ref_count);
    if (!block.cached) continue;
    const KVBlockHash hash{block.hash.high, block.hash.low};
    if (block.next_equal == id) {
      out.cached.emplace_back(id, hash);
    } else if (cached_.find(block.hash) == id) {
      BlockId equal = id;
      do {
        out.cached.emplace_back(equal, hash);
        equal = blocks_[static_cast<size_t>(equal)].next_equal;
      } while (equal != id);
    }
  }
  for (BlockId id = first_free_; id >= 0; id = blocks_[static_cast<size_t>(id)].next_free)
    append_to_runs(out.free, id);
  for (int32_t i = 0; i < num_extents(); ++i) {
    if (extents_[static_cast<size_t>(i)].mapped) append_to_runs(out.mapped_extents, i);
  }
}

void BlockPool::restore(const BlockPoolSnapshot& snapshot) {
  require(snapshot.num_blocks == static_cast<int32_t>(blocks_.size()), "a pool of another size");
  const auto is_block = [this](BlockId id) { return id > kNullBlock && id <= num_usable_blocks(); };
  uncache_all();
  while (first_free_ >= 0) remove_free(first_free_);
  for (Block& block : blocks_) block.ref_count = 0;
  for (Extent& extent : extents_) extent = {};
  num_mapped_ = num_mapped_extents_ = first_unmapped_ = 0;
  last_unused_ = num_extents() - 1;
  for (const auto& [first, count] : snapshot.mapped_extents) {
    require(first >= 0 && count > 0 && count <= num_extents() - first, "an extent outside the pool");
    for (int32_t i = first; i < first + count; ++i) {
      require(!extents_[static_cast<size_t>(i)].mapped, "an extent is mapped twice");
      extents_[static_cast<size_t>(i)].mapped = true;
      BlockId first_block = 0;
      int32_t num_blocks = 0;
      extent_range(i, first_block, num_blocks);
      num_mapped_ += num_blocks;
      ++num_mapped_extents_;
    }
  }
  for (const auto& [id, ref_count] : snapshot.ref_counts) {
    require(is_block(id) && ref_count > 0 && at(id).ref_count == 0 && extent_of(id).mapped,
            "a block in use that is none");
    at(id).ref_count = ref_count;
    ++extent_of(id).num_in_use;
  }
  std::vector<uint8_t> seen(blocks_.size());
  for (const auto& [first, count] : snapshot.free) {
    require(is_block(first) && count > 0 && count <= num_usable_blocks() - first + 1,
            "a free list that is none");
    for (BlockId id = first; id < first + count; ++id) {
      require(at(id).ref_count == 0 && extent_of(id).mapped && !seen[static_cast<size_t>(id)]++,
              "a free list that is none");
      push_free(id);
    }
  }
  require(num_free_ + static_cast<int32_t>(snapshot.ref_counts.size()) == num_mapped_,
          "blocks that are neither free nor in use");
  for (const auto& [id, hash] : snapshot.cached) {
    require(is_block(id) && extent_of(id).mapped && !at(id).cached, "a cached block that is none");
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
  out.bytes_being_lent = bytes_being_lent_;
  out.extents = extents_;
}

void KVCacheManager::restore(const SchedulerSnapshot& snapshot) {
  require(snapshot.pools.size() == groups_.size(), "another number of KV groups");
  for (size_t g = 0; g < groups_.size(); ++g) groups_[g].pool.restore(snapshot.pools[g]);
  if (overlaid_) {
    std::ranges::fill(overlaid_extents_, uint8_t{0});
    first_overlaid_ = 0;
    for (const Group& group : groups_) {
      for (int32_t i = 0; i < group.pool.num_extents(); ++i)
        if (group.pool.is_mapped(i))
          require(overlaid_extents_[static_cast<size_t>(i)]++ == 0, "two groups have the same memory");
    }
  }
  if (shares_memory_) {
    arena_member_->give_back(arena_member_->bytes_held());
    require(snapshot.bytes_held >= 0 && arena_member_->take(snapshot.bytes_held),
            "more memory than there is");
  }
  spare_bytes_ = snapshot.spare_bytes;
  bytes_being_lent_ = snapshot.bytes_being_lent;
  extents_ = snapshot.extents;
}

void KVCacheManager::restore_blocks(Request& request, const RequestSnapshot& snapshot) {
  if (snapshot.blocks.empty()) return;
  require(snapshot.blocks.size() == groups_.size(), "another number of KV groups");
  HeldBlocks& all = request.held();
  bool holds = false;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const RequestBlocksSnapshot& s = snapshot.blocks[g];
    const BlockPool& pool = groups_[g].pool;
    for (BlockId id : s.ids)
      require(id == kNullBlock || (id > 0 && id <= pool.num_usable_blocks() && pool.ref_count(id) > 0),
              "a block that nobody holds");
    const int64_t num_slots = std::ssize(s.ids) * int64_t{block_size(g)};
    require(num_slots <= INT32_MAX / std::ssize(groups_), "more blocks than a request can hold");
    const auto num_ids = static_cast<int32_t>(s.ids.size());
    const auto within = [num_ids](int32_t count) { return count >= 0 && count <= num_ids; };
    require(within(s.num_cached) && within(s.num_skipped) && within(s.num_sent), "a torn block table");
    require(int64_t{s.num_cached} * block_size(g) <= request.num_tokens(),
            "cached blocks of tokens that are not there");
    all.groups_.push_back({s.ids, s.num_cached, s.num_skipped, s.num_sent, s.num_exact_tokens});
    all.has_unsent_ |= s.num_sent < num_ids;
    holds |= num_ids > 0;
  }
  if (holds) count_slots(request);
}

}  // namespace quire
