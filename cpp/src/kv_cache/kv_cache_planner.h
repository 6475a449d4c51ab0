// The arithmetic of the KV cache: layers to groups, bytes to blocks.
#pragma once

#include <cstdint>
#include <vector>

#include "messages/kv_cache_spec.h"

namespace quire {

struct KVCacheDemand {
  int64_t bytes = 0;                 // to divide; or, when it is not 0, num_blocks decides
  int32_t num_blocks = 0;            // of every group, block 0 included; 0: as many as fit into `bytes`
  int32_t max_model_len = 0;         // one sequence of this length must fit
  int64_t max_useful_tokens = 0;     // no more blocks than these can fill
  int32_t max_tokens_in_flight = 0;  // of one request, in all steps that may be in flight
  int64_t granule_bytes = 4096;      // memory is mapped and unmapped in multiples of this
  bool shared = false;               // `bytes` is an arena's that other engines use too
  // Memory stays where it is, as a device's: groups overlay each other in one piece of it, or, where that
  // does not come out even, each gets its part, as one long sequence has it.
  bool stays = false;
};

// Layers of equal specs share a group, hence a block table. Throws InvalidArgument when one sequence of
// max_model_len tokens does not fit, with what would do.
KVCacheConfig plan_kv_cache(const std::vector<KVCacheSpec>& layers, const KVCacheDemand& demand);

// How many sequences of max_model_len tokens generate side by side: what steps in flight compute of their
// prompts is kept for one of them, or for as many parts as there are.
double sequences_at_once(const KVCacheConfig& config, const KVCacheDemand& demand);

}  // namespace quire
