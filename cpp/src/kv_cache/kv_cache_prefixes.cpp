// What the KV cache keeps of full blocks for requests that begin alike, and how they find it.
#include <algorithm>
#include <iterator>
#include <limits>

#include "kv_cache/kv_cache_manager.h"

namespace quire {
namespace {

const char* name_of(KVCacheKind kind) {
  switch (kind) {
    case KVCacheKind::kSlidingWindow: return "sliding_window";
    case KVCacheKind::kMlaLatent: return "mla_attention";
    case KVCacheKind::kState: return "mamba";
    default: return "full_attention";
  }
}

}  // namespace

int32_t KVCacheManager::hit_length(const Group& group, const Request& request, int32_t max_tokens) const {
  const GroupPolicy& policy = group.policy;
  const int32_t block_size = policy.block_size();
  const auto is_cached = [&](int32_t block) {
    return group.pool.find_cached(hash_of(group, request, block)) != kNullBlock;
  };
  if (policy.keeps_everything()) {
    constexpr int32_t kAhead = 8;  // lookups are cache misses: several are on their way at once
    const int32_t num_blocks = max_tokens / block_size;
    for (int32_t block = 0; block < std::min(kAhead, num_blocks); ++block)
      group.pool.prefetch(hash_of(group, request, block));
    for (int32_t block = 0; block < num_blocks; ++block) {
      if (block + kAhead < num_blocks) group.pool.prefetch(hash_of(group, request, block + kAhead));
      if (!is_cached(block)) return block * block_size / alignment_ * alignment_;
    }
    return max_tokens;
  }
  // The longest prefix whose last blocks are there, from the right; at worst one that starts at the first.
  const int32_t need = policy.num_blocks_for_hit();
  int32_t length = max_tokens;
  while (length > 0) {
    const int32_t end = length / block_size;
    int32_t block = end - 1;
    while (block >= std::max(end - need, 0) && is_cached(block)) --block;
    if (block < std::max(end - need, 0)) return length;
    length = block * block_size / alignment_ * alignment_;
  }
  return 0;
}

int32_t KVCacheManager::count_computed_tokens(const Request& request) const {
  if (!enable_prefix_caching_) return 0;
  const int32_t max_tokens = std::min(request.num_tokens() - 1,
                                      static_cast<int32_t>(request.block_hashes().size()) * hash_block_size_);
  int32_t length = max_tokens / alignment_ * alignment_;
  // A shorter prefix is a hit of every full-attention group that has the longer one, but a window's blocks
  // before it may be gone: until all agree.
  for (int32_t before = -1; before != length && length > 0;) {
    before = length;
    for (const Group& group : groups_) length = hit_length(group, request, length);
  }
  return length;
}

void KVCacheManager::find_computed_blocks(const Request& request, ComputedBlocks& out) {
  out.block_ids.resize(groups_.size());
  out.num_tokens = count_computed_tokens(request);
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    auto& ids = out.block_ids[g];
    ids.clear();
    const int32_t num_blocks = out.num_tokens / group.policy.block_size();
    const int32_t first = std::min(group.policy.first_needed_block(out.num_tokens), num_blocks);
    ids.assign(static_cast<size_t>(first), kNullBlock);
    for (int32_t block = first; block < num_blocks; ++block) {
      ids.push_back(group.pool.find_cached(hash_of(group, request, block)));
    }
  }
}

void KVCacheManager::cache_blocks(Request& request, int32_t num_tokens, bool hold_states) {
  // Most steps fill no block.
  if (!fills_block(request, num_tokens)) return;
  HeldBlocks& all = request.held();
  request.set_next_cache_at(std::numeric_limits<int32_t>::max());
  if (!enable_prefix_caching_) return;
  for (size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    RequestBlocks& held = all.groups_[g];
    const int32_t block_size = group.policy.block_size();
    if (group.policy.is_state() && request.num_computed_tokens() % block_size == 0)
      held.num_exact_tokens = request.num_computed_tokens();
    for (; (held.num_cached + 1) * block_size <= num_tokens; ++held.num_cached) {
      const BlockId id = held.ids[static_cast<size_t>(held.num_cached)];
      if (id == kNullBlock) continue;
      // A state that was carried past the block's end is another prefix's.
      if (group.policy.is_state() && held.num_exact_tokens != (held.num_cached + 1) * block_size) continue;
      if (group.policy.is_state() && hold_states) {
        held_states_.push_back({g, &request, held.num_cached});
        continue;
      }
      // Two requests that share a block may both compute it, after its load failed.
      if (group.pool.is_cached(id)) continue;
      const bool first = group.pool.cache(id, hash_of(group, request, held.num_cached));
      if (first && enable_events_) store_event(group, request, held.num_cached);
    }
    request.set_next_cache_at(std::min(request.next_cache_at(), (held.num_cached + 1) * block_size));
  }
}

void KVCacheManager::prefetch_caching(const Request& request) const {
  for (size_t g = 0; g < request.blocks().size() && enable_prefix_caching_; ++g) {
    const RequestBlocks& held = request.blocks()[g];
    __builtin_prefetch(held.ids.data() + held.num_cached);
    const auto hashes = static_cast<size_t>(held.num_cached + 1) *
                        static_cast<size_t>(groups_[g].policy.block_size() / hash_block_size_);
    if (hashes <= request.block_hashes().size()) groups_[g].pool.prefetch(request.block_hashes()[hashes - 1]);
  }
}

void KVCacheManager::publish_states() {
  for (const HeldState& state : held_states_) {
    Group& group = groups_[state.group];
    const BlockId id = state.request->blocks()[state.group].ids[static_cast<size_t>(state.block)];
    const bool first = group.pool.cache(id, hash_of(group, *state.request, state.block));
    if (first && enable_events_) store_event(group, *state.request, state.block);
  }
  held_states_.clear();
}

void KVCacheManager::store_event(const Group& group, const Request& request, int32_t block) {
  const auto to_event = [](const BlockHash& hash) { return KVBlockHash{hash.high, hash.low}; };
  const BlockHash& parent = block == 0 ? request.root_hash() : hash_of(group, request, block - 1);
  const auto index = static_cast<int32_t>(&group - groups_.data());
  const int32_t block_size = group.policy.block_size();
  const bool goes_on = !events_.empty() && events_.back().kind == KVCacheEventKind::kBlockStored &&
                       events_.back().group == index &&
                       events_.back().block_hashes.back() == to_event(parent);
  if (!goes_on) {
    KVCacheEvent& event = events_.emplace_back();
    event.group = index;
    event.parent_block_hash = to_event(parent);
    event.block_size = block_size;
    event.lora_id = request.lora_int_id();
    event.lora_name = request.lora_name();
    event.cache_salt = request.cache_salt();
    event.kv_cache_spec_kind = name_of(group.policy.kind());
    event.kv_cache_spec_sliding_window = group.policy.sliding_window();
  }
  KVCacheEvent& event = events_.back();
  event.block_hashes.push_back(to_event(hash_of(group, request, block)));
  const auto tokens =
      request.token_ids().subspan(static_cast<size_t>(block * block_size), static_cast<size_t>(block_size));
  event.token_ids.insert(event.token_ids.end(), tokens.begin(), tokens.end());
}

void KVCacheManager::uncache_blocks(Request& request, int32_t first_token) {
  HeldBlocks& all = request.held();
  request.set_next_cache_at(0);
  for (size_t g = 0; g < all.groups_.size(); ++g) {
    RequestBlocks& held = all.groups_[g];
    const int32_t first_block = first_token / groups_[g].policy.block_size();
    for (auto i = static_cast<size_t>(first_block); i < held.ids.size(); ++i) {
      if (held.ids[i] != kNullBlock) groups_[g].pool.uncache(held.ids[i]);
    }
    held.num_cached = std::min(held.num_cached, first_block);
  }
  std::erase_if(held_states_, [&](const HeldState& state) { return state.request == &request; });
}

void KVCacheManager::uncache_all() {
  for (Group& group : groups_) group.pool.uncache_all();
}

bool KVCacheManager::reset_prefix_cache() {
  const bool in_use = std::any_of(groups_.begin(), groups_.end(), [](const Group& group) {
    return group.pool.num_free_blocks() != group.pool.num_mapped_blocks();
  });
  if (in_use) return false;
  uncache_all();
  return true;
}

void KVCacheManager::take_events(std::vector<KVCacheEvent>& out) {
  if (events_.empty()) return;
  out.insert(out.end(), std::make_move_iterator(events_.begin()), std::make_move_iterator(events_.end()));
  events_.clear();
}

}  // namespace quire
