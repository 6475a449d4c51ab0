#include "kv_cache/kv_cache_manager.h"

#include <gtest/gtest.h>

#include "kv_cache/kv_cache_planner.h"
#include "quire/error.h"

namespace quire {
namespace {

constexpr int32_t kBlockSize = 4;

KVCacheConfig config(int32_t num_blocks, int32_t num_groups = 1) {
  KVCacheConfig result;
  result.num_blocks = num_blocks;
  for (int32_t group = 0; group < num_groups; ++group) {
    KVCacheGroup entry;
    entry.spec.block_size = kBlockSize;
    entry.spec.page_bytes = 64;
    entry.layers = {group};
    result.groups.push_back(entry);
  }
  return result;
}

Request request(RequestId id, std::vector<int32_t> prompt, std::string cache_salt = "") {
  EngineCoreRequest message;
  message.request_id = id;
  message.prompt_token_ids = std::move(prompt);
  message.cache_salt = std::move(cache_salt);
  return Request(std::move(message), kBlockSize);
}

// What the scheduler does for a request's first step.
int32_t compute_prompt(KVCacheManager& manager, Request& r) {
  ComputedBlocks computed;
  BlockIdsByGroup added;
  manager.find_computed_blocks(r, computed);
  EXPECT_TRUE(manager.allocate_slots(r, r.num_tokens() - computed.num_tokens, &computed, added));
  r.num_computed_tokens = r.num_tokens();
  manager.cache_blocks(r);
  return computed.num_tokens;
}

TEST(KVCacheManagerTest, ASecondEqualPromptHitsAllButItsLastToken) {
  KVCacheManager manager(config(16), true);
  Request a = request(1, {1, 2, 3, 4, 5, 6, 7, 8});
  Request b = request(2, {1, 2, 3, 4, 5, 6, 7, 8});
  EXPECT_EQ(compute_prompt(manager, a), 0);
  EXPECT_EQ(compute_prompt(manager, b), 4);  // 8 would leave no token to compute logits from
  EXPECT_EQ(b.block_ids[0][0], a.block_ids[0][0]);
  EXPECT_NE(b.block_ids[0][1], a.block_ids[0][1]);
}

TEST(KVCacheManagerTest, AHitEndsAtTheFirstDifference) {
  KVCacheManager manager(config(16), true);
  Request a = request(1, {1, 2, 3, 4, 5, 6, 7, 8, 9});
  Request b = request(2, {1, 2, 3, 4, 5, 6, 0, 8, 9});
  compute_prompt(manager, a);
  EXPECT_EQ(compute_prompt(manager, b), 4);
}

TEST(KVCacheManagerTest, SaltsKeepEqualPromptsApart) {
  KVCacheManager manager(config(16), true);
  Request a = request(1, {1, 2, 3, 4, 5}, "alice");
  Request b = request(2, {1, 2, 3, 4, 5}, "bob");
  Request c = request(3, {1, 2, 3, 4, 5}, "alice");
  compute_prompt(manager, a);
  EXPECT_EQ(compute_prompt(manager, b), 0);
  EXPECT_EQ(compute_prompt(manager, c), 4);
}

TEST(KVCacheManagerTest, SharingFreeBlocksUsesUpFreeBlocks) {
  KVCacheManager manager(config(/*num_blocks=*/4), true);  // three to hand out
  Request a = request(1, {1, 2, 3, 4, 5, 6, 7, 8});
  compute_prompt(manager, a);
  manager.free(a);
  EXPECT_EQ(manager.num_free_blocks(), 3);
  // One block is revived and three more are needed: one too many, although three are free.
  Request b = request(2, {1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  ComputedBlocks computed;
  BlockIdsByGroup added;
  manager.find_computed_blocks(b, computed);
  ASSERT_EQ(computed.num_tokens, 4);
  EXPECT_FALSE(manager.allocate_slots(b, 9, &computed, added));
  EXPECT_EQ(manager.num_free_blocks(), 3);
  EXPECT_TRUE(manager.allocate_slots(b, 8, &computed, added));
  EXPECT_EQ(manager.num_free_blocks(), 0);
}

TEST(KVCacheManagerTest, GroupsHaveTheirOwnBlocksAndHitTogether) {
  KVCacheManager manager(config(16, /*num_groups=*/2), true);
  Request a = request(1, {1, 2, 3, 4, 5});
  compute_prompt(manager, a);
  EXPECT_EQ(manager.num_free_blocks(), 15 - 4);
  EXPECT_NE(a.block_ids[0], a.block_ids[1]);
  manager.free(a);
  Request b = request(2, {1, 2, 3, 4, 5});
  EXPECT_EQ(compute_prompt(manager, b), 4);
}

TEST(KVCacheManagerTest, WithoutPrefixCachingNothingIsFound) {
  KVCacheManager manager(config(16), false);
  Request a = request(1, {1, 2, 3, 4, 5});
  Request b = request(2, {1, 2, 3, 4, 5});
  compute_prompt(manager, a);
  EXPECT_EQ(compute_prompt(manager, b), 0);
}

TEST(KVCacheManagerTest, TheTailOfAFreedPrefixIsEvictedFirst) {
  KVCacheManager manager(config(/*num_blocks=*/4), true);
  Request a = request(1, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  compute_prompt(manager, a);
  manager.free(a);
  Request b = request(2, {50});
  compute_prompt(manager, b);  // takes one block
  Request c = request(3, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13});
  ComputedBlocks computed;
  manager.find_computed_blocks(c, computed);
  EXPECT_EQ(computed.num_tokens, 8);
}

TEST(KVCacheManagerTest, BlocksThatWillNotBeComputedAreNotFound) {
  KVCacheManager manager(config(16), true);
  Request a = request(1, {1, 2, 3, 4, 5, 6, 7, 8, 9});
  compute_prompt(manager, a);
  manager.uncache_blocks(a, /*first_token=*/4);
  Request b = request(2, {1, 2, 3, 4, 5, 6, 7, 8, 9});
  ComputedBlocks computed;
  manager.find_computed_blocks(b, computed);
  EXPECT_EQ(computed.num_tokens, 4);
}

TEST(KVCacheManagerTest, CountsTheBlocksAllRunningRequestsShare) {
  KVCacheManager manager(config(16), true);
  Request a = request(1, {1, 2, 3, 4, 5, 6, 7, 8, 9});
  Request b = request(2, {1, 2, 3, 4, 5, 6, 7, 8, 10});
  compute_prompt(manager, a);
  compute_prompt(manager, b);
  std::vector<int32_t> common;
  manager.count_common_prefix_blocks(a, 2, common);
  EXPECT_EQ(common, std::vector<int32_t>{2});
}

TEST(KVCachePlannerTest, LayersOfEqualSpecsShareAGroup) {
  KVCacheSpec wide, narrow;
  wide.block_size = narrow.block_size = 16;
  wide.page_bytes = 1000;
  narrow.page_bytes = 500;
  const KVCacheConfig plan =
      plan_kv_cache({wide, narrow, wide}, /*bytes=*/1 << 20, 0, /*max_model_len=*/32, 1000);
  ASSERT_EQ(plan.groups.size(), 2U);
  EXPECT_EQ(plan.groups[0].layers, (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(plan.block_bytes(), 2500);
}

TEST(KVCachePlannerTest, RefusesWhatCannotHoldOneSequence) {
  KVCacheSpec spec;
  spec.block_size = 16;
  spec.page_bytes = 1024;
  try {
    plan_kv_cache({spec}, /*bytes=*/4096, 0, /*max_model_len=*/64, 1000);
    FAIL() << "four blocks, one of them kept back, cannot hold 64 tokens";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("max_model_len 64 needs 5120 bytes"), std::string::npos)
        << error.what();
  }
  EXPECT_EQ(plan_kv_cache({spec}, 5120, 0, 64, 1000).num_blocks, 5);
}

}  // namespace
}  // namespace quire
