#include "kv_cache/kv_cache_manager.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "util/check.h"

namespace quire {

KVCacheManager::Group::Group(const KVCacheGroup& group)
    : policy(group.spec),
      pool(group.num_blocks, group.blocks_per_extent),
      block_bytes(group.block_bytes()),
      extent_bytes(group.extent_bytes()),
      blocks_per_extent(group.blocks_per_extent) {}

KVCacheManager::KVCacheManager(const KVCacheConfig& config, const KVCacheManagerConfig& manager_config)
    : enable_prefix_caching_(manager_config.enable_prefix_caching),
      enable_events_(manager_config.enable_kv_cache_events),
      arena_(manager_config.arena) {
  if (config.groups.empty()) throw InvalidArgument("the model publishes no KV cache groups");
  groups_.reserve(config.groups.size());
  for (const KVCacheGroup& group : config.groups) {
    const KVCacheSpec& spec = group.spec;
    if (spec.block_size < 1 || spec.page_bytes < 1) {
      throw InvalidArgument(str("a KV cache group has block_size ", spec.block_size, " and page_bytes ",
                                spec.page_bytes, "; both must be at least 1"));
    }
    if (spec.kind == KVCacheKind::kSlidingWindow && spec.sliding_window < 1) {
      throw InvalidArgument(str("a sliding-window KV cache group has sliding_window ", spec.sliding_window,
                                "; it must be at least 1"));
    }
    groups_.emplace_back(group);
    hash_block_size_ = hash_block_size_ == 0 ? spec.block_size : std::min(hash_block_size_, spec.block_size);
    alignment_ = std::max(alignment_, spec.block_size);
    windows_exist_ |= !groups_.back().policy.keeps_everything();
    has_state_groups_ |= groups_.back().policy.is_state();
    if (enable_events_)
      groups_.back().pool.set_event_sink(&events_, static_cast<int32_t>(groups_.size() - 1));
  }
  for (const Group& group : groups_) {
    if (group.policy.block_size() % hash_block_size_ != 0 || alignment_ % group.policy.block_size() != 0) {
      throw InvalidArgument(str("KV cache groups have block sizes ", group.policy.block_size(), " and ",
                                group.policy.block_size() == alignment_ ? hash_block_size_ : alignment_,
                                "; the larger must be a multiple of the smaller"));
    }
  }
  arena_is_shared_ = arena_ != nullptr;
  shares_memory_ = arena_is_shared_ || groups_.size() > 1;
  overlaid_ = config.overlaid;
  if (overlaid_) overlaid_extents_.resize(static_cast<size_t>(groups_[0].pool.num_extents()));
  if (!arena_) arena_ = std::make_shared<KVArena>(std::max<int64_t>(config.bytes, 1));
  arena_member_ = std::make_unique<KVArena::Member>(arena_, config.min_bytes, manager_config.wake);
  if (!shares_memory_) {
    // Nobody else wants it: all is mapped at once.
    Group& group = groups_[0];
    QUIRE_CHECK(map_blocks(group, group.pool.num_usable_blocks()));
  }
}

bool KVCacheManager::find_forked_blocks(const Request& parent, ComputedBlocks& out) const {
  if (has_state_groups_ || parent.blocks().size() != groups_.size()) return false;
  out.block_ids.resize(groups_.size());
  out.num_tokens = parent.num_computed_tokens();
  for (size_t g = 0; g < groups_.size(); ++g) {
    const auto& ids = parent.blocks()[g].ids;
    const auto num_full = static_cast<size_t>(out.num_tokens / groups_[g].policy.block_size());
    if (ids.size() < num_full) return false;
    out.block_ids[g].assign(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(num_full));
  }
  return true;
}

void KVCacheManager::copy_tails(const Request& parent, const Request& fork,
                                std::vector<KVBlockCopy>& out) const {
  for (size_t g = 0; g < groups_.size(); ++g) {
    const int32_t block_size = groups_[g].policy.block_size();
    const auto tail = static_cast<size_t>(parent.num_computed_tokens() / block_size);
    if (parent.num_computed_tokens() % block_size == 0) continue;
    const auto &from = parent.blocks()[g].ids, &to = fork.blocks()[g].ids;
    QUIRE_CHECK(tail < from.size() && tail < to.size(), "request ", fork.id(), " has no place for block ",
                tail, " of request ", parent.id());
    out.push_back({static_cast<int32_t>(g), from[tail], to[tail]});
  }
}

void KVCacheManager::skip_blocks(Group& group, RequestBlocks& held, int32_t first_needed) {
  const int32_t end = std::min(first_needed, static_cast<int32_t>(held.ids.size()));
  // The last first, like all that is freed: nearer to the window means likelier to be wanted again.
  for (int32_t block = end - 1; block >= held.num_skipped; --block) {
    BlockId& id = held.ids[static_cast<size_t>(block)];
    if (id != kNullBlock) group.pool.free(id);
    id = kNullBlock;
  }
  held.num_skipped = std::max(held.num_skipped, end);
}

bool KVCacheManager::allocate_slots(Request& request, int32_t num_new_tokens, const ComputedBlocks* computed,
                                    int32_t num_lookahead_tokens) {
  const int32_t start = request.num_computed_tokens() + (computed ? computed->num_tokens : 0);
  const int32_t num_tokens = start + num_new_tokens + num_lookahead_tokens;
  std::vector<RequestBlocks>& blocks = request.held().groups_;
  if (windows_exist_ && !computed && !blocks.empty()) {
    // A step in flight may still read what lies before its own tokens.
    const int32_t oldest_start = request.num_computed_tokens() - request.num_tokens_in_flight();
    for (size_t g = 0; g < groups_.size(); ++g) {
      skip_blocks(groups_[g], blocks[g], groups_[g].policy.first_needed_block(oldest_start));
    }
  }
  // Most steps of most requests end here: the last block has a slot left.
  if (num_tokens <= request.num_slots()) return true;

  blocks.resize(groups_.size());
  // Where memory may be unmapped to make room, hits must be in use before, or theirs might be.
  const bool shares_first = computed && shares_memory_;
  // A state is wanted at the end of what is computed, wherever lookahead ends.
  const auto num_tokens_of = [&](const Group& group) {
    return group.policy.is_state() ? start + num_new_tokens : num_tokens;
  };
  for (size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    size_t num_have = blocks[g].ids.size();
    int32_t num_revived = 0;  // hits that are free now: sharing them uses up free blocks too
    if (computed) {
      num_have += computed->block_ids[g].size();
      for (BlockId id : computed->block_ids[g]) {
        if (id != kNullBlock && shares_first) {
          group.pool.share(id);
        } else {
          num_revived += id != kNullBlock && group.pool.ref_count(id) == 0;
        }
      }
    }
    const int32_t num_more = group.policy.num_blocks(num_tokens_of(group)) - static_cast<int32_t>(num_have);
    group.num_new = std::max(group.policy.is_state() ? std::min(num_more, 1) : num_more, 0);
    group.num_needed = num_revived + group.num_new;
  }
  if (!make_room()) {
    ++num_failed_allocations_;
    for (size_t g = 0; g < groups_.size() && shares_first; ++g) {
      const auto& ids = computed->block_ids[g];
      for (auto id = ids.rbegin(); id != ids.rend(); ++id) {
        if (*id != kNullBlock) groups_[g].pool.free(*id);
      }
    }
    return false;
  }

  request.held().has_unsent_ = true;
  request.set_next_cache_at(0);
  for (size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    RequestBlocks& held = blocks[g];
    if (computed) {
      for (BlockId id : computed->block_ids[g]) {
        if (id != kNullBlock && !shares_first) group.pool.share(id);
        held.num_skipped += id == kNullBlock;
      }
      held.ids.insert(held.ids.end(), computed->block_ids[g].begin(), computed->block_ids[g].end());
      held.num_cached = static_cast<int32_t>(held.ids.size());
    }
    const auto num_have = static_cast<int32_t>(held.ids.size());
    const int32_t num_blocks = std::max(group.policy.num_blocks(num_tokens_of(group)), num_have);
    if (num_blocks > num_have) {
      held.ids.resize(static_cast<size_t>(num_blocks), kNullBlock);
      // A state group materialises only the state at the end of the step.
      const auto first_new = static_cast<size_t>(group.policy.is_state() ? num_blocks - 1 : num_have);
      QUIRE_CHECK(group.pool.allocate(std::span(held.ids).subspan(first_new)));
    }
  }
  count_slots(request);
  return true;
}

int32_t KVCacheManager::num_quiet_tokens(const Request& request) const {
  if (has_state_groups_) return 0;
  int32_t num_tokens = request.num_slots();
  for (size_t g = 0; g < request.blocks().size() && windows_exist_; ++g) {
    num_tokens = std::min(num_tokens, groups_[g].policy.first_start_behind(request.blocks()[g].num_skipped));
  }
  return num_tokens;
}

void KVCacheManager::count_slots(Request& request) const {
  int32_t num_slots = std::numeric_limits<int32_t>::max();
  int32_t sum = 0;
  int32_t num_groups = 0;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const auto num_blocks = static_cast<int32_t>(request.blocks()[g].ids.size());
    const int32_t num_here = num_blocks * groups_[g].policy.block_size();
    num_slots = std::min(num_slots, num_here);
    if (groups_[g].policy.is_state()) continue;  // one state, whatever it stands for
    sum += num_here;
    ++num_groups;
  }
  request.set_slots(num_slots, sum, num_groups);
}

bool KVCacheManager::fits(const Request& request, const ComputedBlocks& computed, int32_t num_tokens,
                          int32_t max_tokens_in_flight, int32_t num_kept_free) {
  int64_t missing_bytes = 0;
  int64_t surplus_bytes = 0;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    int32_t num_hits = 0;
    int32_t num_revived = 0;
    for (BlockId id : computed.block_ids[g]) {
      num_hits += id != kNullBlock;
      num_revived += id != kNullBlock && group.pool.ref_count(id) == 0;
    }
    // No block is needed before a window, so hits there count too, though they are null. Where the window's
    // bound is the smaller one, that asks for less than the request may come to hold, as in vLLM: it then
    // preempts. A state group holds the same few blocks wherever it stands.
    const int32_t num_hit_blocks =
        group.policy.is_state() ? num_hits : static_cast<int32_t>(computed.block_ids[g].size());
    const int32_t num_held =
        request.blocks().empty() ? 0 : static_cast<int32_t>(request.blocks()[g].ids.size());
    const int32_t needed =
        std::max(group.policy.max_blocks_held(num_tokens, max_tokens_in_flight) - num_hit_blocks - num_held,
                 0) +
        num_revived + num_kept_free;
    const int32_t deficit = needed - group.pool.num_free_blocks();
    if (deficit > 0) {
      missing_bytes +=
          int64_t{(deficit + group.blocks_per_extent - 1) / group.blocks_per_extent} * group.extent_bytes;
    } else {
      surplus_bytes += int64_t{-deficit / group.blocks_per_extent} * group.extent_bytes;
    }
  }
  if (missing_bytes == 0) return true;
  if (!shares_memory_) return false;
  const int64_t bytes_to_take = missing_bytes - spare_bytes_ - surplus_bytes;
  if (bytes_to_take <= arena_member_->bytes_available()) return true;
  // Other engines may have it to spare: they are asked.
  if (!arena_member_->take(bytes_to_take)) return false;
  spare_bytes_ += bytes_to_take;
  return true;
}

void KVCacheManager::take_new_block_ids(Request& request, BlockIdLists& out) const {
  HeldBlocks& all = request.held();
  if (!all.has_unsent_) {
    out.push_empty_rows(1);
    return;
  }
  all.has_unsent_ = false;
  for (RequestBlocks& held : all.groups_) {
    out.push(std::span(held.ids).subspan(static_cast<size_t>(held.num_sent)));
    held.num_sent = static_cast<int32_t>(held.ids.size());
    out.end_list();
  }
}

void KVCacheManager::free(Request& request) {
  HeldBlocks& all = request.held();
  std::erase_if(held_states_, [&](const HeldState& state) { return state.request == &request; });
  for (size_t g = 0; g < all.groups_.size(); ++g) {
    RequestBlocks& held = all.groups_[g];
    for (auto id = held.ids.rbegin(); id != held.ids.rend(); ++id) {
      if (*id != kNullBlock) groups_[g].pool.free(*id);
    }
    held.ids.clear();
    held.num_cached = held.num_skipped = held.num_sent = held.num_exact_tokens = 0;
  }
  request.set_next_cache_at(0);
  request.set_slots(0, 0, 0);
}

int32_t KVCacheManager::num_free_blocks() const {
  if (!shares_memory_) return groups_[0].pool.num_free_blocks();
  int64_t bytes = spare_bytes_ + arena_member_->bytes_available_now();
  for (const Group& group : groups_) bytes += group.pool.num_free_blocks() * group.block_bytes;
  return static_cast<int32_t>(
      std::min<int64_t>(bytes / groups_[0].block_bytes, groups_[0].pool.num_usable_blocks()));
}

int32_t KVCacheManager::num_usable_blocks() const { return groups_[0].pool.num_usable_blocks(); }

int32_t KVCacheManager::num_used_blocks() const {
  if (!shares_memory_) return num_usable_blocks() - num_free_blocks();
  int64_t bytes = 0;
  for (const Group& group : groups_)
    bytes += (group.pool.num_mapped_blocks() - group.pool.num_free_blocks()) * group.block_bytes;
  const int64_t block_bytes = groups_[0].block_bytes;
  return static_cast<int32_t>((bytes + block_bytes - 1) / block_bytes);
}

int64_t KVCacheManager::num_used_slots() const {
  int64_t slots = 0;
  for (const Group& group : groups_) {
    if (group.policy.is_state()) continue;
    slots +=
        int64_t{group.pool.num_mapped_blocks() - group.pool.num_free_blocks()} * group.policy.block_size();
  }
  return slots;
}

}  // namespace quire
