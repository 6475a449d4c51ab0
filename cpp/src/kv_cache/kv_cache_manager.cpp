#include "kv_cache/kv_cache_manager.h"

#include <algorithm>

#include "util/check.h"

namespace quire {
namespace {

int32_t checked_block_size(const KVCacheConfig& config) {
  if (config.groups.empty()) throw InvalidArgument("the model publishes no KV cache groups");
  for (const KVCacheGroup& group : config.groups) {
    if (group.spec.kind != KVCacheKind::kFullAttention) {
      throw InvalidArgument("only full-attention KV cache groups have a block policy");
    }
    if (group.spec.block_size != config.groups[0].spec.block_size) {
      throw InvalidArgument(str("KV cache groups have unequal block sizes ", group.spec.block_size, " and ",
                                config.groups[0].spec.block_size));
    }
  }
  return config.groups[0].spec.block_size;
}

}  // namespace

KVCacheManager::KVCacheManager(const KVCacheConfig& config, bool enable_prefix_caching)
    : num_groups_(static_cast<int32_t>(config.groups.size())),
      block_size_(checked_block_size(config)),
      enable_prefix_caching_(enable_prefix_caching),
      block_pool_(config.num_blocks) {}

void KVCacheManager::find_computed_blocks(const Request& request, ComputedBlocks& out) {
  out.block_ids.resize(static_cast<size_t>(num_groups_));
  for (auto& ids : out.block_ids) ids.clear();
  out.num_tokens = 0;
  if (!enable_prefix_caching_) return;
  const auto hashes = request.block_hashes();
  const size_t max_blocks =
      std::min(hashes.size(), static_cast<size_t>((request.num_tokens() - 1) / block_size_));
  for (size_t i = 0; i < max_blocks; ++i) {
    // A hit needs the block in every group.
    int32_t group = 0;
    for (; group < num_groups_; ++group) {
      const BlockId id = block_pool_.find_cached(hashes[i], group);
      if (id == kNullBlock) break;
      out.block_ids[static_cast<size_t>(group)].push_back(id);
    }
    if (group < num_groups_) break;
    out.num_tokens += block_size_;
  }
  for (auto& ids : out.block_ids) ids.resize(static_cast<size_t>(out.num_tokens / block_size_));
}

bool KVCacheManager::allocate_slots(Request& request, int32_t num_new_tokens, const ComputedBlocks* computed,
                                    BlockIdsByGroup& new_block_ids) {
  const auto groups = static_cast<size_t>(num_groups_);
  request.block_ids.resize(groups);
  request.num_cached_blocks.resize(groups, 0);
  new_block_ids.resize(groups);
  for (auto& ids : new_block_ids) ids.clear();

  const int32_t num_hit_tokens = computed ? computed->num_tokens : 0;
  const int32_t num_tokens = request.num_computed_tokens + num_hit_tokens + num_new_tokens;
  const auto num_blocks = static_cast<size_t>((num_tokens + block_size_ - 1) / block_size_);
  size_t num_needed = 0;
  size_t num_revived = 0;  // hits that are free now: sharing them uses up free blocks too
  for (size_t group = 0; group < groups; ++group) {
    size_t num_held = request.block_ids[group].size();
    if (computed) {
      num_held += computed->block_ids[group].size();
      for (BlockId id : computed->block_ids[group]) num_revived += block_pool_.ref_count(id) == 0;
    }
    num_needed += num_blocks > num_held ? num_blocks - num_held : 0;
  }
  if (num_needed + num_revived > static_cast<size_t>(num_free_blocks())) return false;

  for (size_t group = 0; group < groups; ++group) {
    auto& held = request.block_ids[group];
    auto& added = new_block_ids[group];
    if (computed) {
      for (BlockId id : computed->block_ids[group]) block_pool_.share(id);
      added.assign(computed->block_ids[group].begin(), computed->block_ids[group].end());
      request.num_cached_blocks[group] = static_cast<int32_t>(added.size());
    }
    const size_t num_hits = added.size();
    const size_t num_have = held.size() + num_hits;
    if (num_blocks > num_have) {
      added.resize(num_hits + num_blocks - num_have);
      QUIRE_CHECK(block_pool_.allocate(std::span(added).subspan(num_hits)));
    }
    held.insert(held.end(), added.begin(), added.end());
  }
  return true;
}

void KVCacheManager::cache_blocks(Request& request) {
  if (!enable_prefix_caching_) return;
  const int32_t num_known = std::min(request.num_computed_tokens, request.num_tokens());
  for (size_t group = 0; group < static_cast<size_t>(num_groups_); ++group) {
    int32_t& num_cached = request.num_cached_blocks[group];
    for (; (num_cached + 1) * block_size_ <= num_known; ++num_cached) {
      const auto index = static_cast<size_t>(num_cached);
      block_pool_.cache(request.block_ids[group][index], request.block_hashes()[index],
                        static_cast<int32_t>(group));
    }
  }
}

void KVCacheManager::uncache_blocks(Request& request, int32_t first_token) {
  const auto first_block = static_cast<size_t>(first_token / block_size_);
  for (size_t group = 0; group < request.block_ids.size(); ++group) {
    const auto& ids = request.block_ids[group];
    for (size_t i = first_block; i < ids.size(); ++i) block_pool_.uncache(ids[i]);
    request.num_cached_blocks[group] =
        std::min(request.num_cached_blocks[group], static_cast<int32_t>(first_block));
  }
}

void KVCacheManager::free(Request& request) {
  for (auto& ids : request.block_ids) {
    for (auto id = ids.rbegin(); id != ids.rend(); ++id) block_pool_.free(*id);
    ids.clear();
  }
  std::fill(request.num_cached_blocks.begin(), request.num_cached_blocks.end(), 0);
}

void KVCacheManager::count_common_prefix_blocks(const Request& any_running, int32_t num_running,
                                                std::vector<int32_t>& out) const {
  out.assign(static_cast<size_t>(num_groups_), 0);
  for (size_t group = 0; group < any_running.block_ids.size(); ++group) {
    for (BlockId id : any_running.block_ids[group]) {
      if (block_pool_.ref_count(id) != num_running) break;
      ++out[group];
    }
  }
}

}  // namespace quire
