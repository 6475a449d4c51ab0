#include "request/block_hash.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <vector>

namespace quire {
namespace {

BlockHashChain chain(std::string_view lora_name = "", std::string_view cache_salt = "") {
  return BlockHashChain(HashSeed{}, lora_name, cache_salt);
}

BlockHash name(BlockHashChain chain, const std::vector<int32_t>& tokens) {
  chain.add_block(tokens);
  return chain.name();
}

// Computed by a SHA-256 in another language, from the description in block_hash.cpp.
TEST(BlockHashTest, KnownAnswers) {
  BlockHashChain chain(make_hash_seed("seed"), "lora", "salt");
  EXPECT_EQ(chain.name(), (BlockHash{0xc80177ea124dc81b, 0xd05065b9b526288e}));
  std::vector<int32_t> tokens(16);
  std::iota(tokens.begin(), tokens.end(), 1);
  chain.add_block(tokens);
  EXPECT_EQ(chain.name(), (BlockHash{0x08e9885b65ecfd85, 0x1ef049f7fed32369}));
  chain.add_block(std::vector<int32_t>{7, 8});
  EXPECT_EQ(chain.name(), (BlockHash{0x2e72a3b8945fcd89, 0x9984cad45ee78480}));
  chain.add_key("cat", -3);
  EXPECT_EQ(chain.name(), (BlockHash{0xd4d7358234e730e9, 0x35da22074da933a0}));
  EXPECT_EQ(BlockHashChain(BlockHash{0x0123456789abcdef, 0xfedcba9876543210}).name(),
            (BlockHash{0xa18170b53c333617, 0xa550b72037c88e9d}));
}

TEST(BlockHashTest, ANameDependsOnTheSeed) {
  const auto with_seed = [](std::string_view text) {
    return name(BlockHashChain(make_hash_seed(text), "", ""), {1, 2, 3});
  };
  EXPECT_EQ(with_seed("a"), with_seed("a"));
  EXPECT_NE(with_seed("a"), with_seed("b"));
  EXPECT_EQ(with_seed(""), with_seed(""));  // one for the process, which nobody can guess
  EXPECT_NE(make_hash_seed(""), HashSeed{});
}

TEST(BlockHashTest, SmallDifferencesGiveUnrelatedHashes) {
  std::set<uint64_t> highs, lows;
  for (int32_t i = 0; i < 10000; ++i) {
    const BlockHash hash = name(chain(), {i, 0, 0, i % 7});
    highs.insert(hash.high);
    lows.insert(hash.low);
  }
  EXPECT_EQ(highs.size(), 10000U);
  EXPECT_EQ(lows.size(), 10000U);
}

TEST(BlockHashTest, LoraAndSaltAreNotInterchangeable) {
  EXPECT_NE(chain("a", "b").name(), chain("b", "a").name());
  EXPECT_NE(chain("ab", "").name(), chain("a", "b").name());
}

TEST(BlockHashTest, TrailingZeroTokensCount) { EXPECT_NE(name(chain(), {5, 0}), name(chain(), {5, 0, 0})); }

TEST(BlockHashTest, EveryTokenOfALongBlockCounts) {
  std::set<uint64_t> names;
  std::vector<int32_t> tokens(40);
  for (int32_t& token : tokens) {
    token = 1;
    names.insert(name(chain(), tokens).high);
    token = 0;
  }
  EXPECT_EQ(names.size(), tokens.size());
}

}  // namespace
}  // namespace quire
