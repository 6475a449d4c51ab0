// Names for full blocks of tokens, so that equal prefixes share their keys and values.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace quire {

// 128 bits: with 2^40 blocks the chance of one accidental collision is below 2^-48. Not meant to resist an
// adversary who knows the function; requests that must not share use a cache_salt.
struct BlockHash {
  uint64_t high = 0;
  uint64_t low = 0;
  bool operator==(const BlockHash&) const = default;
};

// The root of a chain: what must be equal besides the tokens.
BlockHash hash_extra_keys(std::string_view lora_name, std::string_view cache_salt);

// The next link: a block's name depends on every token before it.
BlockHash hash_block(const BlockHash& parent, std::span<const int32_t> token_ids);

// A block whose content also depends on `key` at `offset` of it: a multimodal input.
BlockHash hash_with_key(const BlockHash& block, std::string_view key, int64_t offset);

}  // namespace quire
