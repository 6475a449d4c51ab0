// Gives requests their KV blocks: the longest cached prefix first, then new ones, in every group of layers.
//
// Groups have block pools of their own and share the memory of one KVArena. A group of another block size
// than the smallest one uses the hashes at its own block boundaries: a hash names the whole prefix.
//
// Not thread-safe. Owned by the Scheduler, called on its thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kv_cache/block_pool.h"
#include "kv_cache/group_policy.h"
#include "kv_cache/kv_arena.h"
#include "messages/block_ids.h"
#include "messages/kv_cache_spec.h"
#include "messages/scheduler_output.h"
#include "request/request.h"

namespace quire {

// A prefix hit: full blocks, per group, that hold `num_tokens` tokens; kNullBlock where the group needs none.
// No references are held yet.
struct ComputedBlocks {
  BlockIdsByGroup block_ids;
  int32_t num_tokens = 0;
};

struct KVCacheManagerConfig {
  bool enable_prefix_caching = true;
  bool enable_kv_cache_events = false;
  std::shared_ptr<KVArena> arena;  // null: one of its own, of the KVCacheConfig's bytes
  std::function<void()> wake;  // called from any thread when another engine asks for memory, or gives some
};

class KVCacheManager {
 public:
  // Throws InvalidArgument for block sizes that do not divide one another, or an arena with no room left.
  KVCacheManager(const KVCacheConfig& config, const KVCacheManagerConfig& manager_config);

  // The longest run of cached blocks that starts the request's tokens. At most num_tokens - 1 tokens are
  // a hit: one is always recomputed, or there would be no logits to sample from. `out` is overwritten.
  void find_computed_blocks(const Request& request, ComputedBlocks& out);
  // How many tokens that would be: the same search, without the blocks.
  int32_t count_computed_tokens(const Request& request) const;

  // What a fork of `parent` takes over of it: its blocks but one that is not full, which copy_tails copies.
  // False, and nothing, when a group holds states: those cannot be taken at a place between blocks.
  bool find_forked_blocks(const Request& parent, ComputedBlocks& out) const;
  // After the fork was given blocks: copies of the parent's blocks that are not full are appended to `out`.
  // Until these were made the parent holds its own.
  void copy_tails(const Request& parent, const Request& fork, std::vector<KVBlockCopy>& out) const;

  // Makes room for `num_new_tokens` after the request's computed tokens (and after `computed`, when it starts
  // or resumes), plus `num_lookahead_tokens` that may be written but are not counted. Takes the references
  // and appends to the request's blocks. Blocks behind a window are given back first. Returns false, and
  // otherwise changes nothing, when memory is short.
  bool allocate_slots(Request& request, int32_t num_new_tokens, const ComputedBlocks* computed = nullptr,
                      int32_t num_lookahead_tokens = 0);

  // Whether all `num_tokens` of a request that begins with `computed` would fit now, with `num_kept_free`
  // blocks to spare; nothing is reserved. `max_tokens_in_flight` bounds what a window holds besides itself.
  bool fits(const Request& request, const ComputedBlocks& computed, int32_t num_tokens,
            int32_t max_tokens_in_flight, int32_t num_kept_free);

  // As long as the request computes no more tokens than that, in steps of one, allocate_slots changes
  // nothing.
  int32_t num_quiet_tokens(const Request& request) const;

  // Appends a row: the request's blocks that the workers do not know yet.
  void take_new_block_ids(Request& request, BlockIdLists& out) const;

  // Makes the full blocks of the first `num_tokens` tokens findable; all must be known, and computed, or
  // about to be by a step that was scheduled: steps run in order, and within a step a layer stores all keys
  // and values before it reads any. States are read before any is stored: with `hold_states` they are
  // findable only after publish_states(), when the step is scheduled.
  void cache_blocks(Request& request, int32_t num_tokens, bool hold_states = false);
  void publish_states();
  // Whether cache_blocks of so many tokens has something to do.
  bool fills_block(const Request& request, int32_t num_tokens) const {
    return num_tokens >= request.next_cache_at() || has_state_groups_;
  }
  // Starts bringing what it will look at.
  void prefetch_caching(const Request& request) const;

  // Makes the request's blocks from token `first_token` on findable no longer: they will not be computed.
  void uncache_blocks(Request& request, int32_t first_token);

  // Makes no block findable: which of them a failed step left uncomputed is not known.
  void uncache_all();

  // Returns the request's blocks, the last first, so that the tail of a prefix is evicted before its head.
  void free(Request& request);

  // Returns false, and changes nothing, while a request holds blocks.
  bool reset_prefix_cache();

  // Around a step's scheduling, and when the last request is gone: what was asked of other engines and is not
  // needed any more is taken back.
  void begin_schedule() {
    if (arena_is_shared_) arena_member_->begin_schedule();
  }
  void end_schedule() {
    if (arena_is_shared_) arena_member_->end_schedule();
  }

  // Gives memory that is not in use to engines that asked for it: unmaps it in the next step. Returns the
  // bytes, for give_back() once that step has run.
  int64_t lend();
  void give_back(int64_t bytes);
  // Moves what was mapped and unmapped since the last call into `out`.
  void take_extents(std::vector<KVExtent>& out);
  // How often memory was short: a step that came to nothing may still have moved some.
  uint64_t num_failed_allocations() const { return num_failed_allocations_; }
  bool has_extents() const { return !extents_.empty(); }
  bool memory_is_wanted() const;

  // Everything but what the requests hold.
  void save(SchedulerSnapshot& out) const;
  void restore(const SchedulerSnapshot& snapshot);
  // A request's own, after that. Throws InvalidArgument for blocks that it cannot hold.
  void restore_blocks(Request& request, const RequestSnapshot& snapshot);

  // Null while memory is this engine's alone: what it gets then depends on nobody.
  KVArena::Member* shared_memory() const { return arena_is_shared_ ? arena_member_.get() : nullptr; }

  // Since the last call; empty unless they are enabled.
  void take_events(std::vector<KVCacheEvent>& out);

  // In blocks of group 0; memory that could still be mapped counts as free.
  int32_t num_free_blocks() const;
  int32_t num_usable_blocks() const;
  // What requests of this engine hold, in blocks of group 0, rounded up: what other engines hold is neither
  // used nor free.
  int32_t num_used_blocks() const;
  int64_t num_used_slots() const;
  int32_t block_size(size_t group) const { return groups_[group].policy.block_size(); }
  int32_t hash_block_size() const { return hash_block_size_; }
  // Prefixes end at multiples of this; with state groups, chunks should too.
  int32_t alignment() const { return alignment_; }
  bool has_state_groups() const { return has_state_groups_; }
  const BlockPool& block_pool(size_t group) const { return groups_[group].pool; }
  size_t num_groups() const { return groups_.size(); }

 private:
  struct Group {
    Group(const KVCacheGroup& spec);
    GroupPolicy policy;
    BlockPool pool;
    int64_t block_bytes, extent_bytes;
    int32_t blocks_per_extent;
    int32_t num_needed = 0;  // scratch of allocate_slots: free blocks that are shared or handed out
    int32_t num_new = 0;     // scratch of allocate_slots: blocks that are handed out
  };

  // The hash of a group's block: the one at its last token.
  const BlockHash& hash_of(const Group& group, const Request& request, int32_t block) const {
    const int32_t hashes_per_block = group.policy.block_size() / hash_block_size_;
    return request.block_hashes()[static_cast<size_t>((block + 1) * hashes_per_block - 1)];
  }
  int32_t hit_length(const Group& group, const Request& request, int32_t max_tokens) const;
  bool make_room();
  bool map_blocks(Group& group, int32_t num_blocks);
  int32_t find_overlaid_extent();
  void add_extent(size_t group, BlockId first_block, int32_t num_blocks, bool map);
  void skip_blocks(Group& group, RequestBlocks& held, int32_t first_needed);
  void count_slots(Request& request) const;
  void store_event(const Group& group, const Request& request, int32_t block);

  std::vector<Group> groups_;
  bool enable_prefix_caching_;
  bool enable_events_;
  int32_t hash_block_size_ = 0;
  int32_t alignment_ = 0;
  bool has_state_groups_ = false;
  bool windows_exist_ = false;    // some group gives blocks back while a request runs
  bool shares_memory_ = false;    // memory is mapped on demand
  bool arena_is_shared_ = false;  // with other engines
  std::shared_ptr<KVArena> arena_;
  std::unique_ptr<KVArena::Member> arena_member_;
  int64_t spare_bytes_ = 0;  // taken from the arena, mapped nowhere
  int64_t bytes_being_lent_ = 0;
  std::vector<KVExtent> extents_;
  bool overlaid_ = false;
  std::vector<uint8_t> overlaid_extents_;  // 1: some group has it mapped
  size_t first_overlaid_ = 0;              // none before it is unmapped
  struct HeldState {
    size_t group;
    const Request* request;
    int32_t block;
  };
  std::vector<HeldState> held_states_;  // of the step being scheduled
  std::vector<KVCacheEvent> events_;
  uint64_t num_failed_allocations_ = 0;
};

}  // namespace quire
