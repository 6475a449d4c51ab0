// Names for full blocks of tokens, so that equal prefixes share their keys and values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "util/sha256.h"

namespace quire {

// The first half of a SHA-256 state: whoever knows the seed needs 2^64 tries for two prefixes of one name and
// 2^128 for another's; whoever does not cannot try.
struct BlockHash {
  uint64_t high = 0;
  uint64_t low = 0;
  bool operator==(const BlockHash&) const = default;
};

// What all names of an engine depend on.
using HashSeed = std::array<std::byte, 32>;

// The seed that `text` stands for. Empty: one that is drawn from the system, once a process. Thread-safe.
HashSeed make_hash_seed(std::string_view text);

// Takes in a sequence block by block and names each prefix. All blocks of one chain are of one size, and
// token ids are not negative.
class BlockHashChain {
 public:
  // What must be equal besides the tokens.
  BlockHashChain(const HashSeed& seed, std::string_view lora_name, std::string_view cache_salt);
  // Goes on after a prefix of which only the name is known.
  explicit BlockHashChain(const BlockHash& name);

  void add_block(std::span<const int32_t> token_ids);
  // The block just added also depends on `key` at `offset` of it: a multimodal input.
  void add_key(std::string_view key, int64_t offset);

  BlockHash name() const {
    return {uint64_t{state_[0]} << 32 | state_[1], uint64_t{state_[2]} << 32 | state_[3]};
  }

 private:
  Sha256State state_;
};

}  // namespace quire
