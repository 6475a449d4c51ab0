#include "request/block_hash.h"

#include <algorithm>

#include "util/system_random.h"

namespace quire {
namespace {

// First words of message blocks that hold no tokens, and what fills up one that holds few: no token id.
constexpr uint32_t kKey = 0xFFFFFFFE, kName = 0xFFFFFFFD, kPadding = 0xFFFFFFFF;

}  // namespace

HashSeed make_hash_seed(std::string_view text) {
  HashSeed seed;
  if (text.empty()) {
    static const HashSeed drawn = [] {
      HashSeed bytes;
      fill_from_system(bytes);
      return bytes;
    }();
    return drawn;
  }
  const Sha256State digest = Sha256().add("prefix_caching_hash_seed").add_field(text).finish();
  for (size_t i = 0; i < seed.size(); ++i)
    seed[i] = static_cast<std::byte>(digest[i / 4] >> (24 - i % 4 * 8));
  return seed;
}

BlockHashChain::BlockHashChain(const HashSeed& seed, std::string_view lora_name, std::string_view cache_salt)
    : state_(Sha256().add(seed).add_field(lora_name).add_field(cache_salt).finish()) {}

BlockHashChain::BlockHashChain(const BlockHash& name) : state_{} {
  Sha256Block block{kName};
  for (size_t i = 0; i < 2; ++i) {
    block[1 + i] = static_cast<uint32_t>(name.high >> (32 - 32 * i));
    block[3 + i] = static_cast<uint32_t>(name.low >> (32 - 32 * i));
  }
  sha256_compress(state_, block);
}

// One compression for 16 tokens: the chain is a SHA-256 whose state is looked at as it goes. Since a name is
// half of the state, nobody can go on from it.
void BlockHashChain::add_block(std::span<const int32_t> token_ids) {
  Sha256Block block;
  while (token_ids.size() >= block.size()) {
    std::copy_n(token_ids.begin(), block.size(), block.begin());
    sha256_compress(state_, block);
    token_ids = token_ids.subspan(block.size());
  }
  if (token_ids.empty()) return;
  std::fill(std::copy(token_ids.begin(), token_ids.end(), block.begin()), block.end(), kPadding);
  sha256_compress(state_, block);
}

void BlockHashChain::add_key(std::string_view key, int64_t offset) {
  const Sha256State digest = Sha256().add(key).finish();
  Sha256Block block{kKey, static_cast<uint32_t>(static_cast<uint64_t>(offset) >> 32),
                    static_cast<uint32_t>(offset)};
  std::copy(digest.begin(), digest.end(), block.begin() + 3);
  sha256_compress(state_, block);
}

}  // namespace quire
