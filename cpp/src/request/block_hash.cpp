#include "request/block_hash.h"

#include <cstring>

namespace quire {
namespace {

// Odd constants with no structure: the first digits of pi and e.
constexpr uint64_t kPi = 0x243F6A8885A308D3;
constexpr uint64_t kE = 0xB7E151628AED2A6B;
constexpr uint64_t kPi2 = 0x13198A2E03707345;

// Multiplies to 128 bits and folds: every input bit reaches every output bit.
uint64_t mix(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

struct Hasher {
  uint64_t high, low;

  void add(uint64_t word) {
    const uint64_t next_high = mix(high ^ word, kPi ^ low);
    low = mix(low + word, kE ^ high) + kPi2;
    high = next_high ^ (low >> 32);
  }
  void add(std::string_view text) {
    add(text.size());
    while (!text.empty()) {
      uint64_t word = 0;
      const size_t n = text.size() < 8 ? text.size() : 8;
      std::memcpy(&word, text.data(), n);
      add(word);
      text.remove_prefix(n);
    }
  }
  BlockHash result() const { return {mix(high ^ kE, low ^ kPi), mix(low ^ kPi2, high ^ kE) + high}; }
};

}  // namespace

BlockHash hash_extra_keys(std::string_view lora_name, std::string_view cache_salt) {
  Hasher hasher{kPi, kE};
  hasher.add(lora_name);
  hasher.add(cache_salt);
  return hasher.result();
}

BlockHash hash_block(const BlockHash& parent, std::span<const int32_t> token_ids) {
  Hasher hasher{parent.high ^ kPi2, parent.low};
  size_t i = 0;
  for (; i + 1 < token_ids.size(); i += 2) {
    hasher.add(static_cast<uint64_t>(static_cast<uint32_t>(token_ids[i])) << 32 |
               static_cast<uint32_t>(token_ids[i + 1]));
  }
  if (i < token_ids.size()) hasher.add(static_cast<uint32_t>(token_ids[i]));
  hasher.add(token_ids.size());
  return hasher.result();
}

BlockHash hash_with_key(const BlockHash& block, std::string_view key, int64_t offset) {
  Hasher hasher{block.high, block.low ^ kE};
  hasher.add(key);
  hasher.add(static_cast<uint64_t>(offset));
  return hasher.result();
}

}  // namespace quire
