// What happens to cached prefixes, for routers that send requests to where their prefix is.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "quire/export.h"

namespace quire {

enum class KVCacheEventKind : uint8_t {
  kBlockStored = 0,       // a block can be found under its hash
  kBlockRemoved = 1,      // no block can be found under that hash any more
  kAllBlocksCleared = 2,  // nothing can be found
};

// 128 bits that name a prefix: the tokens of a block and of all before it, LoRA, cache salt, multimodal
// inputs.
using KVBlockHash = std::array<uint64_t, 2>;

// Events apply in order. One kBlockStored may carry several consecutive blocks of one sequence. Names are
// those of vLLM's BlockStored and BlockRemoved, but for the group's.
struct QUIRE_API KVCacheEvent {
  KVCacheEventKind kind = KVCacheEventKind::kBlockStored;
  int32_t group = 0;  // of layers: each has its own cached blocks
  std::vector<KVBlockHash> block_hashes;
  KVBlockHash parent_block_hash{};  // kBlockStored: what comes before the first; the root's for a first block
  std::vector<int32_t> token_ids;   // kBlockStored: block_size for each hash
  // Of kBlockStored, too:
  int32_t block_size = 0;
  int32_t lora_id = 0;     // the lora_int_id that the adapter was added with; 0: none
  std::string lora_name;   // of the adapter whose keys and values these are; empty: the model's alone
  std::string cache_salt;  // with which requests find them
  // Of the group: "full_attention", "sliding_window", "mla_attention" or "mamba", and how many tokens a
  // window has; 0: there is none.
  std::string kv_cache_spec_kind;
  int32_t kv_cache_spec_sliding_window = 0;
};

}  // namespace quire
