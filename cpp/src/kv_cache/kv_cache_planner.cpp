#include "kv_cache/kv_cache_planner.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "kv_cache/group_policy.h"
#include "util/check.h"

namespace quire {
namespace {

std::vector<KVCacheGroup> group_layers(const std::vector<KVCacheSpec>& layers) {
  std::vector<KVCacheGroup> groups;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const KVCacheGroup& g) { return g.spec == layers[layer]; });
    if (group == groups.end()) {
      groups.emplace_back();
      group = groups.end() - 1;
      group->spec = layers[layer];
    }
    group->layers.push_back(static_cast<int32_t>(layer));
  }
  return groups;
}

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// What one sequence of max_model_len takes of a group, in whole extents.
int64_t needed_bytes(const KVCacheGroup& group, const KVCacheDemand& demand) {
  const GroupPolicy policy(group.spec);
  const int64_t needed = policy.max_blocks_held(demand.max_model_len, demand.max_tokens_in_flight);
  return round_up(needed, group.blocks_per_extent) * group.block_bytes();
}

// The fewest blocks that end where a granule ends.
void set_extents(KVCacheConfig& config, const KVCacheDemand& demand, int64_t granule_bytes) {
  config.min_bytes = 0;
  for (KVCacheGroup& group : config.groups) {
    group.blocks_per_extent =
        static_cast<int32_t>(granule_bytes / std::gcd(granule_bytes, group.block_bytes()));
    config.min_bytes += needed_bytes(group, demand);
  }
}

// Lays the groups over each other where their extents, all of the same bytes, are small beside the memory.
// Returns whether it did.
bool overlay(KVCacheConfig& config, const KVCacheDemand& demand) {
  constexpr int64_t kLeastExtents = 64, kMaxExtentBytes = int64_t{1} << 28;
  int64_t extent_bytes = 1, useful_bytes = 0;
  for (const KVCacheGroup& group : config.groups) {
    extent_bytes = std::lcm(extent_bytes, group.block_bytes());
    if (extent_bytes > kMaxExtentBytes) return false;
    useful_bytes += round_up(demand.max_useful_tokens, group.spec.block_size) / group.spec.block_size *
                    group.block_bytes();
  }
  int64_t bytes = config.bytes;
  if (demand.num_blocks == 0) bytes = std::min(bytes, round_up(useful_bytes, extent_bytes));
  bytes = bytes / extent_bytes * extent_bytes;
  if (bytes < kLeastExtents * extent_bytes) return false;
  KVCacheConfig overlaid = config;
  set_extents(overlaid, demand, extent_bytes);
  if (overlaid.min_bytes > bytes) return false;
  for (KVCacheGroup& group : overlaid.groups) {
    const int64_t count = bytes / group.block_bytes();
    if (count >= std::numeric_limits<int32_t>::max()) return false;
    group.num_blocks = static_cast<int32_t>(count) + 1;
  }
  overlaid.bytes = bytes;
  overlaid.overlaid = true;
  config = std::move(overlaid);
  return true;
}

}  // namespace

KVCacheConfig plan_kv_cache(const std::vector<KVCacheSpec>& layers, const KVCacheDemand& demand) {
  KVCacheConfig config;
  config.groups = group_layers(layers);
  QUIRE_CHECK(!config.groups.empty());
  int64_t all_block_bytes = 0;
  for (const KVCacheGroup& group : config.groups) all_block_bytes += group.block_bytes();
  set_extents(config, demand, demand.stays ? 1 : demand.granule_bytes);
  // A group that has memory to itself gets all of it at the start, and needs no whole extents.
  const bool alone = config.groups.size() == 1 && !demand.shared;
  config.shared = !alone;
  if (demand.num_blocks > 0) {
    config.bytes = int64_t{demand.num_blocks - 1} * all_block_bytes;
  } else {
    config.bytes = demand.bytes - all_block_bytes;  // block 0 of each group
  }
  if (!alone && demand.stays && overlay(config, demand)) return config;
  // A group's part of `bytes`, where they are divided for good: each can hold one sequence when all together
  // can.
  const auto part_of = [&](const KVCacheGroup& group, int64_t bytes) {
    if (demand.num_blocks > 0) return int64_t{demand.num_blocks - 1} * group.block_bytes();
    const double share =
        static_cast<double>(needed_bytes(group, demand)) / static_cast<double>(config.min_bytes);
    if (bytes < config.min_bytes)
      return static_cast<int64_t>(share * static_cast<double>(bytes));  // refused below
    return needed_bytes(group, demand) +
           static_cast<int64_t>(share * static_cast<double>(bytes - config.min_bytes));
  };
  for (KVCacheGroup& group : config.groups) {
    // Every request ends in a block that is partly empty.
    const int64_t useful = (demand.max_useful_tokens + group.spec.block_size - 1) / group.spec.block_size;
    int64_t bytes = std::max<int64_t>(config.bytes, 0);
    if (!alone && demand.stays) bytes = part_of(group, bytes);
    int64_t count = bytes / group.block_bytes();
    if (demand.num_blocks == 0) count = std::min(count, round_up(useful, group.blocks_per_extent));
    if (!alone) count = count / group.blocks_per_extent * group.blocks_per_extent;
    group.num_blocks =
        static_cast<int32_t>(std::min<int64_t>(count, std::numeric_limits<int32_t>::max() - 1)) + 1;
  }
  if (!alone && demand.stays) {
    config.bytes = 0;
    for (const KVCacheGroup& group : config.groups)
      config.bytes += int64_t{group.num_blocks - 1} * group.block_bytes();
  }
  if (alone) {
    const GroupPolicy policy(config.groups[0].spec);
    config.bytes = int64_t{config.groups[0].num_blocks - 1} * config.groups[0].block_bytes();
    config.min_bytes = policy.max_blocks_held(demand.max_model_len, demand.max_tokens_in_flight) *
                       config.groups[0].block_bytes();
  }
  // Divided memory must do for each group, not only for all together.
  bool fits = config.bytes >= config.min_bytes;
  int64_t blocks_of_one = (config.min_bytes + all_block_bytes - 1) / all_block_bytes;
  for (const KVCacheGroup& group : config.groups) {
    if (alone || !demand.stays) break;
    const int64_t blocks = needed_bytes(group, demand) / group.block_bytes();
    fits &= group.num_blocks - 1 >= blocks;
    blocks_of_one = std::max(blocks_of_one, blocks);
  }
  if (!fits) {
    const KVCacheGroup& first = config.groups[0];
    throw InvalidArgument(str("the KV cache holds ", int64_t{first.num_blocks - 1} * first.spec.block_size,
                              " tokens (", first.num_blocks, " blocks of ", first.spec.block_size,
                              "), one sequence of max_model_len ", demand.max_model_len, " needs ",
                              config.min_bytes + all_block_bytes, " bytes (", blocks_of_one + 1,
                              " blocks): lower max_model_len, or raise ",
                              demand.shared           ? "the bytes of kv_arena"
                              : demand.num_blocks > 0 ? "num_gpu_blocks_override"
                              : demand.stays          ? "kv_cache_memory_bytes, or gpu_memory_utilization"
                                                      : "kv_cache_memory_bytes"));
  }
  return config;
}

double sequences_at_once(const KVCacheConfig& config, const KVCacheDemand& demand) {
  const auto held_bytes = [&](const KVCacheGroup& group) {
    return GroupPolicy(group.spec).max_blocks_held(demand.max_model_len, /*max_tokens_in_flight=*/1) *
           group.block_bytes();
  };
  // Of `bytes`, where one sequence may hold `most` at its beginning, and each `held` as it goes on.
  const auto count = [](int64_t bytes, int64_t most, int64_t held) {
    return static_cast<double>(bytes - (most - held)) / static_cast<double>(held);
  };
  int64_t all_held = 0;
  double least = std::numeric_limits<double>::infinity();
  for (const KVCacheGroup& group : config.groups) {
    const int64_t held = held_bytes(group);
    all_held += held;
    least = std::min(
        least, count(int64_t{group.num_blocks - 1} * group.block_bytes(), needed_bytes(group, demand), held));
  }
  const bool divided = config.groups.size() > 1 && demand.stays && !config.overlaid;
  return divided ? least : count(config.bytes, config.min_bytes, all_held);
}

}  // namespace quire
