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

// Events apply in order. One kBlockStored may carry several consecutive blocks of one sequence.
struct QUIRE_API KVCacheEvent {
  KVCacheEventKind kind = KVCacheEventKind::kBlockStored;
  int32_t group = 0;  // of layers: each has its own cached blocks
  std::vector<KVBlockHash> block_hashes;
  KVBlockHash parent_block_hash{};  // kBlockStored: what comes before the first; the root's for a first block
  std::vector<int32_t> token_ids;   // kBlockStored: block_size for each hash
  int32_t block_size = 0;
  std::string lora_name;
};

}  // namespace quire
