#include "kv_cache/block_pool.h"

#include <gtest/gtest.h>

#include <set>

#include "quire/error.h"

namespace quire {
namespace {

const BlockHash kHash{1, 2};
const BlockHash kOtherHash{3, 4};

TEST(BlockPoolTest, KeepsBlockZeroBack) {
  BlockPool pool(/*num_blocks=*/4);
  BlockId ids[3];
  ASSERT_TRUE(pool.allocate(ids));
  EXPECT_EQ(std::set<BlockId>(ids, ids + 3), (std::set<BlockId>{1, 2, 3}));
  EXPECT_EQ(pool.num_free_blocks(), 0);
}

TEST(BlockPoolTest, AllocatesAllOrNothing) {
  BlockPool pool(/*num_blocks=*/3);
  BlockId ids[3];
  EXPECT_FALSE(pool.allocate(ids));
  EXPECT_EQ(pool.num_free_blocks(), 2);
}

TEST(BlockPoolTest, NeedsARealBlock) { EXPECT_THROW(BlockPool(1), InvalidArgument); }

TEST(BlockPoolTest, SharedBlockOutlivesItsFirstOwner) {
  BlockPool pool(/*num_blocks=*/4);  // three to hand out; block 0 is kept back
  BlockId block;
  ASSERT_TRUE(pool.allocate({&block, 1}));
  pool.share(block);
  pool.free(block);
  EXPECT_EQ(pool.num_free_blocks(), 2);
  pool.free(block);
  EXPECT_EQ(pool.num_free_blocks(), 3);
}

TEST(BlockPoolTest, FreeingTwiceIsCaught) {
  BlockPool pool(/*num_blocks=*/2);
  BlockId block;
  ASSERT_TRUE(pool.allocate({&block, 1}));
  pool.free(block);
  EXPECT_THROW(pool.free(block), InternalError);
}

TEST(BlockPoolTest, FreedContentIsFoundUntilTheSpaceIsNeeded) {
  BlockPool pool(/*num_blocks=*/3);
  BlockId first, second;
  ASSERT_TRUE(pool.allocate({&first, 1}));
  pool.cache(first, kHash, /*group=*/0);
  pool.free(first);
  EXPECT_EQ(pool.find_cached(kHash, 0), first);
  EXPECT_EQ(pool.find_cached(kHash, 1), kNullBlock);  // another group's blocks are others
  ASSERT_TRUE(pool.allocate({&second, 1}));           // the other block: it was freed earlier
  EXPECT_NE(second, first);
  EXPECT_EQ(pool.find_cached(kHash, 0), first);
  ASSERT_TRUE(pool.allocate({&second, 1}));
  EXPECT_EQ(second, first);
  EXPECT_EQ(pool.find_cached(kHash, 0), kNullBlock);
}

TEST(BlockPoolTest, LeastRecentlyFreedGoesFirst) {
  BlockPool pool(/*num_blocks=*/4);
  BlockId ids[3];
  ASSERT_TRUE(pool.allocate(ids));
  pool.free(ids[1]);
  pool.free(ids[0]);
  pool.free(ids[2]);
  BlockId again[3];
  ASSERT_TRUE(pool.allocate(again));
  EXPECT_EQ(again[0], ids[1]);
  EXPECT_EQ(again[1], ids[0]);
  EXPECT_EQ(again[2], ids[2]);
}

TEST(BlockPoolTest, SharingRevivesAFreeCachedBlock) {
  BlockPool pool(/*num_blocks=*/2);
  BlockId block, none;
  ASSERT_TRUE(pool.allocate({&block, 1}));
  pool.cache(block, kHash, 0);
  pool.free(block);
  pool.share(block);
  EXPECT_EQ(pool.num_free_blocks(), 0);
  EXPECT_FALSE(pool.allocate({&none, 1}));
}

TEST(BlockPoolTest, EqualContentInTwoBlocksSurvivesTheFirst) {
  BlockPool pool(/*num_blocks=*/3);
  BlockId ids[2];
  ASSERT_TRUE(pool.allocate(ids));
  pool.cache(ids[0], kHash, 0);
  pool.cache(ids[1], kHash, 0);
  EXPECT_EQ(pool.find_cached(kHash, 0), ids[0]);
  pool.uncache(ids[0]);
  EXPECT_EQ(pool.find_cached(kHash, 0), ids[1]);
  pool.uncache(ids[1]);
  EXPECT_EQ(pool.find_cached(kHash, 0), kNullBlock);
}

TEST(BlockPoolTest, UncachingAllForgetsBlocksInUseToo) {
  BlockPool pool(/*num_blocks=*/3);
  BlockId ids[2];
  ASSERT_TRUE(pool.allocate(ids));
  pool.cache(ids[0], kHash, 0);
  pool.cache(ids[1], kOtherHash, 0);
  pool.free(ids[1]);
  pool.uncache_all();
  EXPECT_EQ(pool.find_cached(kHash, 0), kNullBlock);
  EXPECT_EQ(pool.find_cached(kOtherHash, 0), kNullBlock);
  EXPECT_EQ(pool.num_free_blocks(), 1);
}

TEST(BlockPoolTest, ResetForgetsContentOnlyWhenNothingIsHeld) {
  BlockPool pool(/*num_blocks=*/3);
  BlockId block;
  ASSERT_TRUE(pool.allocate({&block, 1}));
  pool.cache(block, kOtherHash, 0);
  EXPECT_FALSE(pool.reset_prefix_cache());
  pool.free(block);
  EXPECT_TRUE(pool.reset_prefix_cache());
  EXPECT_EQ(pool.find_cached(kOtherHash, 0), kNullBlock);
}

}  // namespace
}  // namespace quire
