// Gives requests their KV blocks: the longest cached prefix first, then new ones.
//
// Not thread-safe. Owned by the Scheduler, called on its thread.
#pragma once

#include <cstdint>
#include <vector>

#include "kv_cache/block_pool.h"
#include "messages/kv_cache_spec.h"
#include "request/request.h"

namespace quire {

// A prefix hit: full blocks, per group, that hold `num_tokens` tokens. No references are held yet.
struct ComputedBlocks {
  BlockIdsByGroup block_ids;
  int32_t num_tokens = 0;
};

class KVCacheManager {
 public:
  // Throws InvalidArgument for a group kind that has no block policy here yet (all but full attention) or
  // groups of unequal block size.
  KVCacheManager(const KVCacheConfig& config, bool enable_prefix_caching);

  // The longest run of cached blocks that starts the request's tokens. At most num_tokens - 1 tokens are
  // a hit: one is always recomputed, or there would be no logits to sample from. `out` is overwritten.
  void find_computed_blocks(const Request& request, ComputedBlocks& out);

  // Makes room for `num_new_tokens` after the request's computed tokens (and after `computed`, on a
  // request's first step or when it resumes). Takes the references, appends to request.block_ids, and puts
  // what was added, hits included, into `new_block_ids`. Returns false, and changes nothing, when too few
  // blocks are free.
  bool allocate_slots(Request& request, int32_t num_new_tokens, const ComputedBlocks* computed,
                      BlockIdsByGroup& new_block_ids);

  // Makes full blocks of known tokens findable, those of the step just planned included: steps run in
  // order, and within a step a layer stores all keys and values before it reads any.
  void cache_blocks(Request& request);

  // Makes the request's blocks from token `first_token` on findable no longer: they will not be computed.
  void uncache_blocks(Request& request, int32_t first_token);

  // Makes no block findable: which of them a failed step left uncomputed is not known.
  void uncache_all() { block_pool_.uncache_all(); }

  // Returns the request's blocks, the last first, so that the tail of a prefix is evicted before its head.
  void free(Request& request);

  // How many leading blocks of each group all running requests share.
  void count_common_prefix_blocks(const Request& any_running, int32_t num_running,
                                  std::vector<int32_t>& out) const;

  bool reset_prefix_cache() { return block_pool_.reset_prefix_cache(); }
  int32_t num_free_blocks() const { return block_pool_.num_free_blocks(); }
  int32_t num_usable_blocks() const { return block_pool_.num_usable_blocks(); }
  int32_t block_size() const { return block_size_; }
  // Longest sequence that fits when nothing else runs.
  int64_t max_tokens_of_one_request() const {
    return int64_t{num_usable_blocks()} / num_groups_ * block_size_;
  }

 private:
  int32_t num_groups_;
  int32_t block_size_;
  bool enable_prefix_caching_;
  BlockPool block_pool_;
};

}  // namespace quire
