#include "kv_cache/block_pool.h"

#include <gtest/gtest.h>

#include <set>

#include "quire/error.h"

namespace quire {
namespace {

const BlockHash kHash{1, 2};
const BlockHash kOtherHash{3, 4};

// A pool whose blocks all have memory.
struct MappedPool : BlockPool {
  explicit MappedPool(int32_t num_blocks, int32_t blocks_per_extent = 1)
      : BlockPool(num_blocks, blocks_per_extent) {
    BlockId first = 0;
    int32_t count = 0;
    while (map_extent(first, count)) {
    }
  }
};

TEST(BlockPoolTest, KeepsBlockZeroBack) {
  MappedPool pool(/*num_blocks=*/4);
  BlockId ids[3];
  ASSERT_TRUE(pool.allocate(ids));
  EXPECT_EQ(std::set<BlockId>(ids, ids + 3), (std::set<BlockId>{1, 2, 3}));
  EXPECT_EQ(pool.num_free_blocks(), 0);
}

TEST(BlockPoolTest, AllocatesAllOrNothing) {
  MappedPool pool(/*num_blocks=*/3);
  BlockId ids[3];
  EXPECT_FALSE(pool.allocate(ids));
  EXPECT_EQ(pool.num_free_blocks(), 2);
}

TEST(BlockPoolTest, NeedsARealBlock) { EXPECT_THROW(BlockPool(1), InvalidArgument); }

TEST(BlockPoolTest, SharedBlockOutlivesItsFirstOwner) {
  MappedPool pool(/*num_blocks=*/4);  // three to hand out; block 0 is kept back
  BlockId block;
  ASSERT_TRUE(pool.allocate({&block, 1}));
  pool.share(block);
  pool.free(block);
  EXPECT_EQ(pool.num_free_blocks(), 2);
  pool.free(block);
  EXPECT_EQ(pool.num_free_blocks(), 3);
}

TEST(BlockPoolTest, FreeingTwiceIsCaught) {
  MappedPool pool(/*num_blocks=*/2);
  BlockId block;
  ASSERT_TRUE(pool.allocate({&block, 1}));
  pool.free(block);
  EXPECT_THROW(pool.free(block), InternalError);
}

TEST(BlockPoolTest, FreedContentIsFoundUntilTheSpaceIsNeeded) {
  MappedPool pool(/*num_blocks=*/3);
  BlockId first, second;
  ASSERT_TRUE(pool.allocate({&first, 1}));
  pool.cache(first, kHash);
  pool.free(first);
  EXPECT_EQ(pool.find_cached(kHash), first);
  ASSERT_TRUE(pool.allocate({&second, 1}));  // the other block: it was freed earlier
  EXPECT_NE(second, first);
  EXPECT_EQ(pool.find_cached(kHash), first);
  ASSERT_TRUE(pool.allocate({&second, 1}));
  EXPECT_EQ(second, first);
  EXPECT_EQ(pool.find_cached(kHash), kNullBlock);
}

TEST(BlockPoolTest, BlocksNobodyCanFindGoFirstThenTheLeastRecentlyFreed) {
  MappedPool pool(/*num_blocks=*/5);
  BlockId ids[4];
  ASSERT_TRUE(pool.allocate(ids));
  pool.cache(ids[0], kHash);
  pool.cache(ids[1], kOtherHash);
  pool.free(ids[1]);
  pool.free(ids[0]);
  pool.free(ids[2]);
  pool.free(ids[3]);
  BlockId again[4];
  ASSERT_TRUE(pool.allocate(again));
  EXPECT_EQ(std::set<BlockId>(again, again + 2), (std::set<BlockId>{ids[2], ids[3]}));
  EXPECT_EQ(again[2], ids[1]);
  EXPECT_EQ(again[3], ids[0]);
}

TEST(BlockPoolTest, OfThreeEqualBlocksTheOldestLeftIsFound) {
  MappedPool pool(/*num_blocks=*/4);
  BlockId ids[3];
  ASSERT_TRUE(pool.allocate(ids));
  EXPECT_TRUE(pool.cache(ids[0], kHash));
  EXPECT_FALSE(pool.cache(ids[1], kHash));
  EXPECT_FALSE(pool.cache(ids[2], kHash));
  pool.uncache(ids[0]);
  EXPECT_EQ(pool.find_cached(kHash), ids[1]);
  pool.uncache(ids[2]);
  EXPECT_EQ(pool.find_cached(kHash), ids[1]);
  pool.uncache(ids[1]);
  EXPECT_EQ(pool.find_cached(kHash), kNullBlock);
}

TEST(BlockPoolTest, OnlyMappedBlocksAreHandedOut) {
  BlockPool pool(/*num_blocks=*/6, /*blocks_per_extent=*/2);
  BlockId block;
  EXPECT_FALSE(pool.allocate({&block, 1}));
  BlockId first = 0;
  int32_t count = 0;
  ASSERT_TRUE(pool.map_extent(first, count));
  EXPECT_EQ(first, 1);
  EXPECT_EQ(count, 2);
  ASSERT_TRUE(pool.map_extent(first, count));
  ASSERT_TRUE(pool.map_extent(first, count));
  EXPECT_EQ(first, 5);
  EXPECT_EQ(count, 1);  // what is left of five blocks
  EXPECT_FALSE(pool.map_extent(first, count));
  EXPECT_EQ(pool.num_free_blocks(), 5);
}

TEST(BlockPoolTest, AnExtentIsUnmappedOnlyWhenAllOfItIsFree) {
  MappedPool pool(/*num_blocks=*/5, /*blocks_per_extent=*/2);
  BlockId ids[3];
  ASSERT_TRUE(pool.allocate(ids));  // 1, 2, 3
  pool.cache(ids[0], kHash);
  BlockId first = 0;
  int32_t count = 0;
  EXPECT_FALSE(pool.unmap_extent(first, count));
  pool.free(ids[0]);
  pool.free(ids[1]);
  EXPECT_EQ(pool.find_cached(kHash), ids[0]);
  ASSERT_TRUE(pool.unmap_extent(first, count));
  EXPECT_EQ(first, 1);
  EXPECT_EQ(pool.find_cached(kHash), kNullBlock);  // its content went with the memory
  EXPECT_EQ(pool.num_free_blocks(), 1);
  EXPECT_EQ(pool.num_mapped_blocks(), 2);
  ASSERT_TRUE(pool.map_extent(first, count));
  EXPECT_EQ(first, 1);
}

TEST(BlockPoolTest, SharingRevivesAFreeCachedBlock) {
  MappedPool pool(/*num_blocks=*/2);
  BlockId block, none;
  ASSERT_TRUE(pool.allocate({&block, 1}));
  pool.cache(block, kHash);
  pool.free(block);
  pool.share(block);
  EXPECT_EQ(pool.num_free_blocks(), 0);
  EXPECT_FALSE(pool.allocate({&none, 1}));
}

TEST(BlockPoolTest, EqualContentInTwoBlocksSurvivesTheFirst) {
  MappedPool pool(/*num_blocks=*/3);
  BlockId ids[2];
  ASSERT_TRUE(pool.allocate(ids));
  pool.cache(ids[0], kHash);
  pool.cache(ids[1], kHash);
  EXPECT_EQ(pool.find_cached(kHash), ids[0]);
  pool.uncache(ids[0]);
  EXPECT_EQ(pool.find_cached(kHash), ids[1]);
  pool.uncache(ids[1]);
  EXPECT_EQ(pool.find_cached(kHash), kNullBlock);
}

TEST(BlockPoolTest, UncachingAllForgetsBlocksInUseToo) {
  MappedPool pool(/*num_blocks=*/3);
  BlockId ids[2];
  ASSERT_TRUE(pool.allocate(ids));
  pool.cache(ids[0], kHash);
  pool.cache(ids[1], kOtherHash);
  pool.free(ids[1]);
  pool.uncache_all();
  EXPECT_EQ(pool.find_cached(kHash), kNullBlock);
  EXPECT_EQ(pool.find_cached(kOtherHash), kNullBlock);
  EXPECT_EQ(pool.num_free_blocks(), 1);
}

TEST(BlockPoolTest, ResetForgetsContentOnlyWhenNothingIsHeld) {
  MappedPool pool(/*num_blocks=*/3);
  BlockId block;
  ASSERT_TRUE(pool.allocate({&block, 1}));
  pool.cache(block, kOtherHash);
  EXPECT_FALSE(pool.reset_prefix_cache());
  pool.free(block);
  EXPECT_TRUE(pool.reset_prefix_cache());
  EXPECT_EQ(pool.find_cached(kOtherHash), kNullBlock);
}

// Half of the buckets are taken: were they chosen at random, 20 searches in a row would be long already.
TEST(BlockHashMapTest, HashesThatShareTheirBitsDoNotPileUp) {
  constexpr int32_t kNumEntries = 1 << 14;
  const auto longest_search = [](auto hash_of) {
    BlockHashMap map(kNumEntries);
    for (int32_t i = 1; i <= kNumEntries; ++i) map.set(hash_of(static_cast<uint64_t>(i)), i);
    return map.longest_search();
  };
  EXPECT_LT(longest_search([](uint64_t i) { return BlockHash{i, 0}; }), 200U);
  EXPECT_LT(longest_search([](uint64_t i) { return BlockHash{0, i}; }), 200U);
  EXPECT_LT(longest_search([](uint64_t i) { return BlockHash{i, i << 40}; }), 200U);
  EXPECT_LT(longest_search([](uint64_t i) { return BlockHash{i << 32, i << 32}; }), 200U);
}

}  // namespace
}  // namespace quire
