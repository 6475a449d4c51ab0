#include "kv_cache/kv_cache_manager.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>

#include "kv_cache/kv_cache_planner.h"
#include "kv_cache/small_specs.h"
#include "quire/error.h"
#include "request/make_request.h"

namespace quire {
namespace {

// `num_blocks` of each group, block 0 included.
KVCacheConfig config(int32_t num_blocks, const std::vector<KVCacheSpec>& layers = {spec_of()}) {
  KVCacheDemand demand;
  demand.num_blocks = num_blocks;
  demand.max_model_len = kBlockSize;
  demand.max_tokens_in_flight = 8;
  return plan_kv_cache(layers, demand);
}

KVCacheManagerConfig caching(bool enable = true) {
  KVCacheManagerConfig manager;
  manager.enable_prefix_caching = enable;
  return manager;
}

Request request(RequestId id, std::vector<int32_t> prompt, std::string cache_salt = "") {
  EngineCoreRequest message = make_request(id, std::move(prompt));
  message.cache_salt = std::move(cache_salt);
  return Request(std::move(message), kBlockSize);
}

// A step that has returned.
void step(Request& r, int32_t num_new_tokens) {
  ScheduledRequest scheduled;
  std::vector<int32_t> drafts;
  r.begin_step(num_new_tokens, scheduled, drafts);
  r.end_step(scheduled);
}

// What the scheduler does when a request begins.
int32_t begin(KVCacheManager& manager, Request& r, int32_t num_new_tokens = 0) {
  ComputedBlocks computed;
  manager.find_computed_blocks(r, computed);
  if (num_new_tokens == 0) num_new_tokens = r.num_tokens() - computed.num_tokens;
  EXPECT_TRUE(manager.allocate_slots(r, num_new_tokens, &computed));
  r.run(computed.num_tokens, 0, 0.0);
  step(r, num_new_tokens);
  manager.cache_blocks(r, r.num_computed_tokens());
  return computed.num_tokens;
}

// What the scheduler does when a request goes on. False when blocks are missing.
bool go_on(KVCacheManager& manager, Request& r, int32_t num_new_tokens) {
  if (!manager.allocate_slots(r, num_new_tokens)) return false;
  step(r, num_new_tokens);
  manager.cache_blocks(r, std::min(r.num_computed_tokens(), r.num_tokens()));
  return true;
}

std::vector<int32_t> tokens(int32_t count, int32_t first = 1) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

TEST(KVCacheManagerTest, ASecondEqualPromptHitsAllButItsLastToken) {
  KVCacheManager manager(config(16), caching());
  Request a = request(1, {1, 2, 3, 4, 5, 6, 7, 8});
  Request b = request(2, {1, 2, 3, 4, 5, 6, 7, 8});
  EXPECT_EQ(begin(manager, a), 0);
  EXPECT_EQ(begin(manager, b), 4);  // 8 would leave no token to compute logits from
  EXPECT_EQ(b.blocks()[0].ids[0], a.blocks()[0].ids[0]);
  EXPECT_NE(b.blocks()[0].ids[1], a.blocks()[0].ids[1]);
}

TEST(KVCacheManagerTest, AHitEndsAtTheFirstDifference) {
  KVCacheManager manager(config(16), caching());
  Request a = request(1, {1, 2, 3, 4, 5, 6, 7, 8, 9});
  Request b = request(2, {1, 2, 3, 4, 5, 6, 0, 8, 9});
  begin(manager, a);
  EXPECT_EQ(begin(manager, b), 4);
}

TEST(KVCacheManagerTest, SaltsKeepEqualPromptsApart) {
  KVCacheManager manager(config(16), caching());
  Request a = request(1, {1, 2, 3, 4, 5}, "alice");
  Request b = request(2, {1, 2, 3, 4, 5}, "bob");
  Request c = request(3, {1, 2, 3, 4, 5}, "alice");
  begin(manager, a);
  EXPECT_EQ(begin(manager, b), 0);
  EXPECT_EQ(begin(manager, c), 4);
}

TEST(KVCacheManagerTest, SharingFreeBlocksUsesUpFreeBlocks) {
  KVCacheManager manager(config(/*num_blocks=*/4), caching());  // three to hand out
  Request a = request(1, {1, 2, 3, 4, 5, 6, 7, 8});
  begin(manager, a);
  manager.free(a);
  EXPECT_EQ(manager.num_free_blocks(), 3);
  // One block is revived and three more are needed: one too many, although three are free.
  Request b = request(2, {1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  ComputedBlocks computed;
  manager.find_computed_blocks(b, computed);
  ASSERT_EQ(computed.num_tokens, 4);
  EXPECT_FALSE(manager.allocate_slots(b, 9, &computed));
  EXPECT_EQ(manager.num_free_blocks(), 3);
  EXPECT_TRUE(manager.allocate_slots(b, 8, &computed));
  EXPECT_EQ(manager.num_free_blocks(), 0);
}

TEST(KVCacheManagerTest, WithoutPrefixCachingNothingIsFound) {
  KVCacheManager manager(config(16), caching(false));
  Request a = request(1, {1, 2, 3, 4, 5});
  Request b = request(2, {1, 2, 3, 4, 5});
  begin(manager, a);
  EXPECT_EQ(begin(manager, b), 0);
}

TEST(KVCacheManagerTest, TheTailOfAFreedPrefixIsEvictedFirst) {
  KVCacheManager manager(config(/*num_blocks=*/4), caching());
  Request a = request(1, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  begin(manager, a);
  manager.free(a);
  Request b = request(2, {50});
  begin(manager, b);  // takes one block
  Request c = request(3, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13});
  ComputedBlocks computed;
  manager.find_computed_blocks(c, computed);
  EXPECT_EQ(computed.num_tokens, 8);
}

TEST(KVCacheManagerTest, BlocksThatWillNotBeComputedAreNotFound) {
  KVCacheManager manager(config(16), caching());
  Request a = request(1, {1, 2, 3, 4, 5, 6, 7, 8, 9});
  begin(manager, a);
  manager.uncache_blocks(a, /*first_token=*/4);
  Request b = request(2, {1, 2, 3, 4, 5, 6, 7, 8, 9});
  ComputedBlocks computed;
  manager.find_computed_blocks(b, computed);
  EXPECT_EQ(computed.num_tokens, 4);
}

TEST(KVCacheManagerTest, WindowBlocksAreFreedAsTheySlideOut) {
  // A window of 6: token 12 reads tokens 7 to 12, so the first block is gone, and at 16 the second and third.
  KVCacheManager manager(config(16, {spec_of(KVCacheKind::kSlidingWindow, 6)}), caching());
  Request a = request(1, tokens(20));
  begin(manager, a, 12);
  EXPECT_EQ(manager.num_free_blocks(), 12);
  go_on(manager, a, 4);
  EXPECT_EQ(a.blocks()[0].ids[0], kNullBlock);
  EXPECT_EQ(manager.num_free_blocks(), 12);  // one freed, one taken
  go_on(manager, a, 4);
  EXPECT_EQ(a.blocks()[0].ids[1], kNullBlock);
  EXPECT_NE(a.blocks()[0].ids[2], kNullBlock);
  manager.free(a);
  EXPECT_EQ(manager.num_free_blocks(), 15);
}

TEST(KVCacheManagerTest, AWindowHitNeedsOnlyTheBlocksOfItsWindow) {
  KVCacheManager manager(config(16, {spec_of(KVCacheKind::kSlidingWindow, 6)}), caching());
  Request a = request(1, tokens(17));
  begin(manager, a, 16);
  go_on(manager, a, 1);
  manager.free(a);
  Request b = request(2, tokens(17));
  ComputedBlocks computed;
  manager.find_computed_blocks(b, computed);
  EXPECT_EQ(computed.num_tokens, 16);
  EXPECT_EQ(std::count(computed.block_ids[0].begin(), computed.block_ids[0].end(), kNullBlock), 2);
}

TEST(KVCacheManagerTest, AStateGroupHoldsAtMostTheStateItReadsAndTheOneItWrites) {
  KVCacheManager manager(config(16, {spec_of(KVCacheKind::kState)}), caching());
  Request a = request(1, tokens(30));
  begin(manager, a, 12);
  EXPECT_EQ(manager.num_free_blocks(), 14);  // the state after 12 tokens, and none in between
  go_on(manager, a, 10);
  EXPECT_EQ(manager.num_free_blocks(), 13);  // the states after 12 and after 22 tokens
  go_on(manager, a, 1);
  EXPECT_EQ(manager.num_free_blocks(), 14);  // the one after 12 is read no more; 23 is where 22 was
  manager.free(a);
  EXPECT_EQ(manager.num_free_blocks(), 15);
}

TEST(KVCacheManagerTest, AStateIsFoundOnlyWhereAStepEnded) {
  KVCacheManager manager(config(16, {spec_of(KVCacheKind::kState)}), caching());
  Request a = request(1, tokens(30));
  begin(manager, a, 12);  // exactly three blocks
  go_on(manager, a, 6);   // 18: past 16, whose state was never kept
  go_on(manager, a, 4);   // 22: past 20, where the block held the state after 18
  manager.free(a);
  Request b = request(2, tokens(30));
  ComputedBlocks computed;
  manager.find_computed_blocks(b, computed);
  EXPECT_EQ(computed.num_tokens, 12);
  EXPECT_EQ(computed.block_ids[0], (std::vector<BlockId>{kNullBlock, kNullBlock, computed.block_ids[0][2]}));
}

TEST(KVCacheManagerTest, GroupsHitTogetherOrNotAtAll) {
  KVCacheManager manager(config(16, {spec_of(), spec_of(KVCacheKind::kState)}), caching());
  Request a = request(1, tokens(30));
  begin(manager, a, 8);
  go_on(manager, a, 7);  // 15 tokens: three full blocks of keys, but states only after 8 and 15
  manager.free(a);
  Request b = request(2, tokens(30));
  EXPECT_EQ(begin(manager, b, 4), 8);
  EXPECT_EQ(b.blocks()[0].ids.size(), 3U);
  EXPECT_EQ(b.blocks()[1].ids[0], kNullBlock);
}

TEST(KVCacheManagerTest, GroupsMayHaveBlocksOfTheirOwnSize) {
  KVCacheManager manager(config(33, {spec_of(), spec_of(KVCacheKind::kMlaLatent, 0, 8)}), caching());
  Request a = request(1, tokens(22));
  begin(manager, a);
  EXPECT_EQ(a.blocks()[0].ids.size(), 6U);
  EXPECT_EQ(a.blocks()[1].ids.size(), 3U);
  Request b = request(2, tokens(21));
  EXPECT_EQ(begin(manager, b), 16);  // 20 are cached in the first group, 16 in both
}

TEST(KVCacheManagerTest, BlockSizesMustDivideOneAnother) {
  EXPECT_THROW(KVCacheManager(config(33, {spec_of(), spec_of(KVCacheKind::kMlaLatent, 0, 6)}), caching()),
               InvalidArgument);
}

TEST(KVCacheManagerTest, GroupsTakeMemoryFromOneAnother) {
  // 15 blocks of memory for each, to be used by either.
  KVCacheManager manager(config(16, {spec_of(), spec_of(KVCacheKind::kSlidingWindow, 4)}), caching());
  EXPECT_EQ(manager.num_free_blocks(), 30);
  Request a = request(1, tokens(100));
  // 80 tokens: 20 blocks of full attention, and of the window ever fewer than five.
  begin(manager, a, 8);
  while (a.num_computed_tokens() < 80) ASSERT_TRUE(go_on(manager, a, 8)) << a.num_computed_tokens();
  EXPECT_EQ(a.blocks()[0].ids.size(), 20U);
  manager.free(a);
  EXPECT_EQ(manager.num_free_blocks(), 30);
  // Now the window's group needs what the other has cached.
  Request b = request(2, tokens(60, 1000));
  ASSERT_EQ(begin(manager, b, 60), 0);
  EXPECT_EQ(manager.num_free_blocks(), 0);
  manager.free(b);
  EXPECT_EQ(manager.num_free_blocks(), 30);
}

// On a device, whose groups have the same addresses: 256 blocks of the first group's size, a half of which is
// two of the window's.
TEST(KVCacheManagerTest, OverlaidGroupsNeverHaveTheSameMemory) {
  KVCacheDemand demand;
  demand.bytes = 257 * 8192 + 4096;
  demand.max_model_len = 100;
  demand.max_useful_tokens = 1'000'000;
  demand.max_tokens_in_flight = 8;
  demand.stays = true;
  const KVCacheConfig plan =
      plan_kv_cache({spec_of(), spec_of(KVCacheKind::kSlidingWindow, 4), spec_of()}, demand);
  ASSERT_TRUE(plan.overlaid);
  const int64_t num_bytes = plan.memory_bytes(/*maps_on_demand=*/false);
  KVCacheManager manager(plan, caching());
  std::mt19937 random(3);
  const auto below = [&](size_t n) { return random() % n; };
  std::vector<std::unique_ptr<Request>> running;
  size_t most = 0;
  int refused = 0, found = 0;
  for (int i = 0; i < 4000; ++i) {
    const size_t which = running.empty() ? 0 : below(running.size());
    if (i % 1000 < 500 && below(3) == 0) {
      // Some prompts come again, and are found.
      const auto first = static_cast<int32_t>(below(40)) * 100;
      auto next =
          std::make_unique<Request>(request(i + 1, tokens(1 + static_cast<int32_t>(below(90)), first)));
      ComputedBlocks computed;
      manager.find_computed_blocks(*next, computed);
      const int32_t left = next->num_tokens() - computed.num_tokens;
      if (manager.fits(*next, computed, next->num_tokens(), 8, 0) &&
          manager.allocate_slots(*next, std::min(left, 8), &computed)) {
        found += computed.num_tokens > 0 ? 1 : 0;
        next->run(computed.num_tokens, 0, 0.0);
        step(*next, std::min(left, 8));
        running.push_back(std::move(next));
      } else {
        ++refused;
      }
    } else if (!running.empty() && (below(6) == 0 || !go_on(manager, *running[which], 1 + below(8)))) {
      manager.free(*running[which]);
      running.erase(running.begin() + static_cast<std::ptrdiff_t>(which));
    }
    most = std::max(most, running.size());
    std::vector<KVExtent> extents;
    manager.take_extents(extents);
    ASSERT_TRUE(extents.empty());  // nothing is to be done for memory that stays
    // Who holds each kilobyte; prefixes are shared within a group.
    std::vector<int> holders(static_cast<size_t>(num_bytes / 1024), -1);
    for (const auto& r : running) {
      for (int g = 0; g < 2; ++g) {
        const KVCacheGroup& group = plan.groups[static_cast<size_t>(g)];
        for (const BlockId id : r->blocks()[static_cast<size_t>(g)].ids) {
          if (id == kNullBlock) continue;
          const int64_t begin = plan.overlaid_begin(group) + id * group.block_bytes();
          ASSERT_LE(begin + group.block_bytes(), num_bytes);
          for (int64_t byte = begin; byte < begin + group.block_bytes(); byte += 1024) {
            int& holder = holders[static_cast<size_t>(byte / 1024)];
            ASSERT_TRUE(holder < 0 || holder == 2 * id + g) << i;
            holder = 2 * id + g;
          }
        }
      }
    }
  }
  EXPECT_GT(most, 10U);
  EXPECT_GT(refused, 10);
  EXPECT_GT(found, 10);
  for (const auto& r : running) manager.free(*r);
  EXPECT_EQ(manager.num_free_blocks() * 8192, plan.bytes);
}

TEST(KVCacheManagerTest, LentMemoryIsTheOthersOnlyWhenTheStepThatUnmapsItHasRun) {
  KVCacheManagerConfig sharing = caching();
  sharing.arena = std::make_shared<KVArena>(8 * 4096);
  KVCacheDemand demand;
  demand.bytes = 9 * 4096;  // and block 0
  demand.shared = true;
  demand.max_model_len = kBlockSize;
  demand.max_useful_tokens = 100;
  const KVCacheConfig shared = plan_kv_cache({spec_of()}, demand);
  KVCacheManager lender(shared, sharing);
  KVCacheManager borrower(shared, sharing);
  Request a = request(1, tokens(28));
  begin(lender, a);  // all but the block that the other is sure of
  lender.free(a);
  Request b = request(2, tokens(12));
  EXPECT_FALSE(borrower.allocate_slots(b, 12));
  const int64_t lent_bytes = lender.lend();
  EXPECT_EQ(lent_bytes, 2 * 4096);
  EXPECT_FALSE(borrower.allocate_slots(b, 12));  // a step in flight may still write there
  lender.give_back(lent_bytes);
  EXPECT_TRUE(borrower.allocate_slots(b, 12));
}

TEST(KVCacheManagerTest, EventsTellARouterWhatIsCached) {
  KVCacheManagerConfig with_events = caching();
  with_events.enable_kv_cache_events = true;
  KVCacheManager manager(config(/*num_blocks=*/4), with_events);
  Request a = request(1, tokens(9));
  begin(manager, a);
  std::vector<KVCacheEvent> events;
  manager.take_events(events);
  ASSERT_EQ(events.size(), 1U);  // one event for the run of two blocks
  EXPECT_EQ(events[0].kind, KVCacheEventKind::kBlockStored);
  EXPECT_EQ(events[0].token_ids, tokens(8));
  EXPECT_EQ(events[0].block_size, kBlockSize);
  ASSERT_EQ(events[0].block_hashes.size(), 2U);
  const KVBlockHash root{a.root_hash().high, a.root_hash().low};
  EXPECT_EQ(events[0].parent_block_hash, root);
  EXPECT_EQ(events[0].kv_cache_spec_kind, "full_attention");
  EXPECT_EQ(events[0].kv_cache_spec_sliding_window, 0);
  const auto hashes = events[0].block_hashes;

  manager.free(a);
  Request b = request(2, tokens(8, 50));
  begin(manager, b);
  events.clear();
  manager.take_events(events);
  ASSERT_EQ(events.size(), 2U);  // the tail of the old prefix gave way
  EXPECT_EQ(events[0].kind, KVCacheEventKind::kBlockRemoved);
  EXPECT_EQ(events[0].block_hashes, (std::vector<KVBlockHash>{hashes[1]}));
  EXPECT_EQ(events[1].kind, KVCacheEventKind::kBlockStored);

  manager.free(b);
  EXPECT_TRUE(manager.reset_prefix_cache());
  events.clear();
  manager.take_events(events);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].kind, KVCacheEventKind::kAllBlocksCleared);
}

TEST(KVCacheManagerTest, ABlockThatTwoHoldIsRemovedOnlyWithTheLast) {
  KVCacheManagerConfig with_events = caching();
  with_events.enable_kv_cache_events = true;
  KVCacheManager manager(config(/*num_blocks=*/8), with_events);
  Request a = request(1, tokens(4));
  Request b = request(2, tokens(4));
  begin(manager, a);
  begin(manager, b);  // computes the same block again: its last token may not be a hit
  std::vector<KVCacheEvent> events;
  manager.take_events(events);
  EXPECT_EQ(events.size(), 1U);
  manager.uncache_blocks(a, 0);
  events.clear();
  manager.take_events(events);
  EXPECT_TRUE(events.empty());
  manager.uncache_blocks(b, 0);
  manager.take_events(events);
  EXPECT_EQ(events.size(), 1U);
}

}  // namespace
}  // namespace quire
