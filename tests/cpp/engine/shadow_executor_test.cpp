// The shadow model must notice what it is there to notice.
#include "engine/shadow_executor.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

namespace quire {
namespace {

constexpr int32_t kShadowBlockSize = 4;
const std::vector<int32_t> kPrompt = {1, 2, 3, 4, 5, 6};

// One request, one group, blocks that the test hands out.
struct OneRequest {
  explicit OneRequest(const KVCacheSpec& spec, int32_t num_speculative_tokens = 0)
      : executor({spec}, /*max_model_len=*/64, /*max_in_flight_steps=*/1, num_speculative_tokens) {
    KVCacheConfig config;
    config.groups.resize(1);
    config.groups[0].spec = spec;
    config.groups[0].layers = {0};
    config.groups[0].num_blocks = 8;
    config.bytes = 6 * config.groups[0].block_bytes();
    executor.initialize_kv_cache(config);
    scheduler_output.kv_extents = {{0, 1, 6, 1}};
    scheduler_output.scheduled_new_reqs.resize(1);
    scheduler_output.scheduled_new_reqs[0].request_id = 1;
    scheduler_output.scheduled_new_reqs[0].prompt_token_ids = kPrompt;
  }
  // Computes tokens [begin, end) after appending `blocks`; returns what was sampled.
  std::vector<int32_t> step(int32_t begin, int32_t end, std::vector<BlockId> blocks, bool samples = true) {
    ++scheduler_output.step_id;
    const uint8_t is_new = scheduler_output.step_id == 1;
    scheduler_output.scheduled_reqs = {
        {1, end - begin, begin, static_cast<int32_t>(drafts.size()), samples, is_new, 0, 0}};
    scheduler_output.spec_token_ids = drafts;
    scheduler_output.total_num_scheduled_tokens = end - begin;
    scheduler_output.new_block_ids.clear(1);
    scheduler_output.new_block_ids.push(blocks);
    scheduler_output.new_block_ids.end_list();
    executor.launch(scheduler_output);
    executor.collect(scheduler_output.step_id, output);
    scheduler_output.kv_extents.clear();
    scheduler_output.scheduled_new_reqs.clear();
    drafts = output.draft_token_ids;
    return output.sampled_token_ids;
  }
  ShadowExecutor executor;
  SchedulerOutput scheduler_output;
  ModelRunnerOutput output;
  std::vector<int32_t> drafts;
};

template <class Action>
int num_failures(const Action& action) {
  testing::TestPartResultArray failures;
  const testing::ScopedFakeTestPartResultReporter reporter(&failures);
  action();
  return failures.size();
}

TEST(ShadowExecutorTest, EveryLostSlotIsNoticed) {
  OneRequest f(shadow_spec(kShadowBlockSize));
  f.step(0, 6, {1, 2});
  f.scheduler_output.kv_extents = {{0, 1, 1, 0}, {0, 1, 1, 1}};  // taken and given back
  EXPECT_EQ(num_failures([&] { f.step(6, 7, {}); }), kShadowBlockSize);
}

TEST(ShadowExecutorTest, BlocksBehindTheWindowAreNotRead) {
  OneRequest f(shadow_spec(kShadowBlockSize, KVCacheKind::kSlidingWindow, /*sliding_window=*/3));
  f.step(0, 6, {1, 2});
  f.scheduler_output.kv_extents = {{0, 1, 1, 0}};
  EXPECT_EQ(f.step(6, 7, {}), std::vector<int32_t>{shadow_output(kPrompt, 2, true)[1]});  // reads 4 to 6
  OneRequest g(shadow_spec(kShadowBlockSize, KVCacheKind::kSlidingWindow, /*sliding_window=*/4));
  g.step(0, 6, {1, 2});
  g.scheduler_output.kv_extents = {{0, 1, 1, 0}};
  EXPECT_EQ(num_failures([&] { g.step(6, 7, {}); }), 2);  // reads 3 to 6: without memory, and not what it was
}

TEST(ShadowExecutorTest, AStateIsReadWhereTheStepBeforeLeftIt) {
  OneRequest f(shadow_spec(kShadowBlockSize, KVCacheKind::kState));
  f.step(0, 3, {1}, /*samples=*/false);
  f.step(3, 6, {2});
  f.scheduler_output.kv_extents = {{0, 1, 1, 0}};  // the state of three tokens has been left behind
  EXPECT_EQ(f.step(6, 7, {}), std::vector<int32_t>{shadow_output(kPrompt, 2, true)[1]});
  EXPECT_EQ(num_failures([&] { f.step(6, 7, {}, false); }), 1);  // the state has seen 7
}

TEST(ShadowExecutorTest, MemoryMustBeMappedAndTheNullBlockIsNone) {
  OneRequest f(shadow_spec(kShadowBlockSize));
  EXPECT_EQ(num_failures([&] { f.step(0, 1, {7}, false); }), 2);  // written, and read
  OneRequest g(shadow_spec(kShadowBlockSize));
  EXPECT_GE(num_failures([&] { g.step(0, 1, {kNullBlock}, false); }), 2);
}

TEST(ShadowExecutorTest, TheBudgetHolds) {
  OneRequest f(shadow_spec(kShadowBlockSize));
  f.scheduler_output.kv_extents = {{0, 1, 7, 1}};  // six would fit
  EXPECT_EQ(num_failures([&] { f.step(0, 6, {1, 2}); }), 1);
}

TEST(ShadowExecutorTest, DraftsAreRightHalfOfTheTimeAndChangeNoOutput) {
  OneRequest f(shadow_spec(16), /*num_speculative_tokens=*/2);
  std::vector<int32_t> produced = f.step(0, 6, {1, 2, 3, 4});
  size_t num_drafts = 0, num_accepted = 0;
  while (produced.size() < 50) {
    const auto begin = static_cast<int32_t>(kPrompt.size() + produced.size()) - 1;
    num_drafts += f.drafts.size();
    const auto tokens = f.step(begin, begin + 1 + static_cast<int32_t>(f.drafts.size()), {});
    num_accepted += tokens.size() - 1;
    produced.insert(produced.end(), tokens.begin(), tokens.end());
  }
  EXPECT_EQ(produced, shadow_output(kPrompt, static_cast<int32_t>(produced.size()), true));
  EXPECT_GT(num_accepted, num_drafts / 4);  // the second counts only when the first was right
  EXPECT_LT(num_accepted, num_drafts / 2);
}

}  // namespace
}  // namespace quire
