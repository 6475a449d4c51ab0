#include "kv_cache/kv_cache_planner.h"

#include <gtest/gtest.h>

#include <string>

#include "kv_cache/small_specs.h"
#include "quire/error.h"
#include "util/error_of.h"

namespace quire {
namespace {

TEST(KVCachePlannerTest, LayersOfEqualSpecsShareAGroup) {
  KVCacheSpec wide = spec_of();
  KVCacheSpec narrow = spec_of();
  narrow.page_bytes = 1024;
  KVCacheDemand demand;
  demand.bytes = 1 << 20;
  demand.max_model_len = 32;
  demand.max_useful_tokens = 1000;
  const KVCacheConfig plan = plan_kv_cache({wide, narrow, wide}, demand);
  ASSERT_EQ(plan.groups.size(), 2U);
  EXPECT_EQ(plan.groups[0].layers, (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(plan.groups[0].block_bytes(), 8192);
  EXPECT_EQ(plan.groups[1].block_bytes(), 1024);
  EXPECT_EQ(plan.groups[1].blocks_per_extent, 4);  // four make a granule of 4096
}

TEST(KVCachePlannerTest, RefusesWhatCannotHoldOneSequence) {
  KVCacheSpec spec;
  spec.block_size = 16;
  spec.page_bytes = 1024;
  KVCacheDemand demand;
  demand.bytes = 4096;
  demand.max_model_len = 64;
  demand.max_useful_tokens = 1000;
  const std::string error = error_of([&] { plan_kv_cache({spec}, demand); });
  EXPECT_NE(error.find("max_model_len 64 needs 5120 bytes"), std::string::npos)
      << "four blocks, one of them kept back, cannot hold 64 tokens: " << error;
  demand.bytes = 5120;
  EXPECT_EQ(plan_kv_cache({spec}, demand).groups[0].num_blocks, 5);
}

TEST(KVCachePlannerTest, AWindowNeedsLessThanTheWholeSequence) {
  KVCacheDemand demand;
  demand.num_blocks = 8;
  demand.max_model_len = 1000;
  demand.max_tokens_in_flight = 8;
  EXPECT_THROW(plan_kv_cache({spec_of()}, demand), InvalidArgument);
  EXPECT_NO_THROW(plan_kv_cache({spec_of(KVCacheKind::kSlidingWindow, 12)}, demand));
}

// Two layers that keep everything and one with a window, on a device: 1000 tokens need 250 blocks of 8 KiB
// and, with 20 tokens in flight, (12 - 1 + 20) / 4 + 1 = 9 blocks of a size that has nothing in common with
// the others'.
class DividedKVCacheTest : public testing::Test {
 protected:
  DividedKVCacheTest() {
    demand_.max_model_len = 1000;
    demand_.max_useful_tokens = 1'000'000;
    demand_.max_tokens_in_flight = 20;
    demand_.stays = true;
    layers_[1].page_bytes = kWindow;
  }
  static constexpr int64_t kFull = 8192, kWindow = 4099;
  static constexpr int64_t kOneSequence = 250 * kFull + 9 * kWindow, kNullBlocks = kFull + kWindow;

  std::vector<KVCacheSpec> layers_ = {spec_of(), spec_of(KVCacheKind::kSlidingWindow, 12), spec_of()};
  KVCacheDemand demand_;
};

// The same where two of the window's blocks are as large as one of the others: an extent is 8 KiB.
class OverlaidKVCacheTest : public DividedKVCacheTest {
 protected:
  OverlaidKVCacheTest() { layers_[1].page_bytes = kWindow; }
  static constexpr int64_t kWindow = 4096, kExtent = 8192;
  static constexpr int64_t kOneSequence = 250 * kExtent + 5 * kExtent, kNullBlocks = kFull + kWindow;
};

TEST_F(OverlaidKVCacheTest, EitherGroupCanHaveAllOfTheMemory) {
  for (const int64_t extra : {int64_t{0}, kExtent - 1, kExtent, 100 * kExtent + 77}) {
    demand_.bytes = kOneSequence + kNullBlocks + extra;
    const KVCacheConfig plan = plan_kv_cache(layers_, demand_);
    ASSERT_TRUE(plan.overlaid);
    EXPECT_EQ(plan.bytes, (kOneSequence + extra) / kExtent * kExtent);
    EXPECT_EQ(plan.min_bytes, kOneSequence);
    EXPECT_LE(plan.memory_bytes(/*maps_on_demand=*/false), demand_.bytes);
    for (const KVCacheGroup& group : plan.groups) {
      EXPECT_EQ(group.extent_bytes(), kExtent);
      EXPECT_EQ((group.num_blocks - 1) * group.block_bytes(), plan.bytes);
      // Block 1 of each begins behind all blocks 0.
      EXPECT_EQ(plan.overlaid_begin(group) + group.block_bytes(), kFull);
    }
  }
}

TEST_F(OverlaidKVCacheTest, MemoryThatNobodyCanFillIsNotTaken) {
  demand_.bytes = 100 * kOneSequence;
  demand_.max_useful_tokens = 3000;
  EXPECT_EQ(plan_kv_cache(layers_, demand_).bytes, 750 * kFull + 750 * kWindow);
}

// As they go on, windows hold (12 - 1 + 1) / 4 + 1 = 4 blocks.
TEST_F(OverlaidKVCacheTest, SequencesAtOnceAreCountedAsTheyGoOn) {
  constexpr int64_t kHeld = 250 * kFull + 4 * kWindow;
  for (const int64_t count : {1, 2, 10}) {
    demand_.bytes = kOneSequence + (count - 1) * kHeld + kNullBlocks;
    EXPECT_EQ(sequences_at_once(plan_kv_cache(layers_, demand_), demand_), static_cast<double>(count));
  }
  // A group alone: as much for each.
  demand_.bytes = 4 * 250 * 4096 + 4096;
  EXPECT_EQ(sequences_at_once(plan_kv_cache({spec_of()}, demand_), demand_), 4.0);
}

TEST_F(DividedKVCacheTest, SequencesAtOnceAreThoseOfTheSmallerPart) {
  demand_.num_blocks = 500 + 1;
  const KVCacheConfig plan = plan_kv_cache(layers_, demand_);
  ASSERT_FALSE(plan.overlaid);
  EXPECT_EQ(sequences_at_once(plan, demand_), 2.0);
}

TEST_F(OverlaidKVCacheTest, LittleMemoryIsDivided) {
  demand_.max_model_len = 16;
  demand_.num_blocks = 41;  // 60 extents
  EXPECT_FALSE(plan_kv_cache(layers_, demand_).overlaid);
  demand_.num_blocks = 44;
  EXPECT_TRUE(plan_kv_cache(layers_, demand_).overlaid);
  // What is rounded up to whole extents must not make one sequence too long.
  demand_.max_model_len = 1000;
  demand_.num_blocks = 0;
  demand_.bytes = kOneSequence + kNullBlocks - 1;
  EXPECT_FALSE(plan_kv_cache(layers_, demand_).overlaid);
}

TEST_F(DividedKVCacheTest, EachGroupGetsItsPartAndAllTogetherNoMoreThanThereIs) {
  for (const int64_t extra : {0, 1, 4095, 100'000, 10'000'000, 123'456'789}) {
    demand_.bytes = kOneSequence + kNullBlocks + extra;
    const KVCacheConfig plan = plan_kv_cache(layers_, demand_);
    ASSERT_EQ(plan.groups.size(), 2U);
    const int64_t full = plan.groups[0].num_blocks, window = plan.groups[1].num_blocks;
    // Block 0 of each takes memory too.
    EXPECT_LE(full * kFull + window * kWindow, demand_.bytes);
    EXPECT_GT(full * kFull + window * kWindow, demand_.bytes - kNullBlocks);  // little is left over
    EXPECT_EQ(plan.bytes, (full - 1) * kFull + (window - 1) * kWindow);
    EXPECT_GE(full - 1, 250);
    EXPECT_GE(window - 1, 9);
    EXPECT_EQ(plan.min_bytes, kOneSequence);
    // Equally many sequences fit into either group.
    EXPECT_NEAR(static_cast<double>(full - 1) / 250, static_cast<double>(window - 1) / 9, 1.0 / 9);
  }
}

TEST_F(DividedKVCacheTest, MemoryThatNobodyCanFillIsNotTaken) {
  demand_.bytes = 100 * kOneSequence;
  demand_.max_useful_tokens = 3000;
  const KVCacheConfig plan = plan_kv_cache(layers_, demand_);
  EXPECT_EQ(plan.groups[0].num_blocks, 751);
  EXPECT_EQ(plan.bytes, 750 * kFull + int64_t{plan.groups[1].num_blocks - 1} * kWindow);
}

TEST_F(DividedKVCacheTest, LessThanOneSequenceIsRefused) {
  for (const int64_t bytes : {kOneSequence + kNullBlocks - 1, kOneSequence / 2, kNullBlocks, int64_t{0}}) {
    demand_.bytes = bytes;
    const std::string text = error_of([&] { plan_kv_cache(layers_, demand_); });
    EXPECT_NE(text.find("max_model_len 1000 needs 2097182 bytes (251 blocks)"), std::string::npos) << text;
    EXPECT_NE(text.find("kv_cache_memory_bytes"), std::string::npos) << text;
  }
}

TEST_F(DividedKVCacheTest, TheOverrideCountsForEveryGroup) {
  demand_.bytes = 1;  // does not matter
  demand_.num_blocks = 251;
  const KVCacheConfig plan = plan_kv_cache(layers_, demand_);
  EXPECT_EQ(plan.groups[0].num_blocks, 251);
  EXPECT_EQ(plan.groups[1].num_blocks, 251);
  EXPECT_EQ(plan.bytes, 250 * (kFull + kWindow));
  // What the window's group has too much of is of no use to the other.
  demand_.num_blocks = 250;
  const std::string text = error_of([&] { plan_kv_cache(layers_, demand_); });
  EXPECT_NE(text.find("(251 blocks)"), std::string::npos) << text;
  EXPECT_NE(text.find("num_gpu_blocks_override"), std::string::npos) << text;
  demand_.stays = false;
  layers_[1].page_bytes = 4096;
  EXPECT_NO_THROW(plan_kv_cache(layers_, demand_));
}

TEST_F(DividedKVCacheTest, AGroupAloneHasAllOfIt) {
  demand_.bytes = 300 * 4096 + 4095;
  const KVCacheConfig plan = plan_kv_cache({spec_of()}, demand_);
  EXPECT_EQ(plan.groups[0].num_blocks, 300);
  EXPECT_EQ(plan.bytes, 299 * 4096);
  EXPECT_FALSE(plan.shared);
}

}  // namespace
}  // namespace quire
