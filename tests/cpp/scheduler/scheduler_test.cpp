#include "scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <map>

#include "quire/error.h"

namespace quire {
namespace {

KVCacheConfig kv_cache(int32_t usable_blocks, int32_t block_size) {
  KVCacheConfig config;
  config.num_blocks = usable_blocks + 1;
  config.groups.emplace_back();
  config.groups[0].spec.block_size = block_size;
  config.groups[0].layers = {0};
  return config;
}

EngineCoreRequest make_request(RequestId id, int32_t num_prompt_tokens, int32_t max_tokens,
                               int32_t priority = 0) {
  EngineCoreRequest request;
  request.request_id = id;
  // Every prompt is its own: no prefix hits unless a test wants them.
  for (int32_t i = 0; i < num_prompt_tokens; ++i)
    request.prompt_token_ids.push_back(static_cast<int32_t>(id) * 1000 + i);
  request.sampling_params.max_tokens = max_tokens;
  request.priority = priority;
  return request;
}

// Plans a step and answers it: token 7 for every request that samples.
struct Driver {
  explicit Driver(Scheduler& scheduler) : scheduler(scheduler) {}
  std::map<RequestId, int32_t> step() {
    scheduler.schedule(plan);
    ModelRunnerOutput result;
    std::map<RequestId, int32_t> tokens;
    for (const ScheduledTokens& s : plan.num_scheduled_tokens) {
      tokens[s.request_id] = s.num_tokens;
      result.sampled.push_back(
          {s.request_id, s.samples ? std::vector<int32_t>{7} : std::vector<int32_t>{}, {}, ""});
    }
    outputs = {};
    scheduler.update_from_output(plan, result, outputs);
    return tokens;
  }
  using Tokens = std::map<RequestId, int32_t>;
  Scheduler& scheduler;
  SchedulerOutput plan;
  EngineCoreOutputs outputs;
};
using Tokens = Driver::Tokens;

SchedulerConfig config(int32_t max_num_batched_tokens) {
  SchedulerConfig c;
  c.max_num_batched_tokens = max_num_batched_tokens;
  c.max_model_len = 64;
  return c;
}

TEST(SchedulerTest, RunningRequestsComeBeforeWaitingOnes) {
  Scheduler scheduler(config(10), kv_cache(20, 4));
  Driver driver(scheduler);
  scheduler.add_request(make_request(1, 8, 4));
  EXPECT_EQ(driver.step(), (Tokens{{1, 8}}));
  scheduler.add_request(make_request(2, 12, 4));
  EXPECT_EQ(driver.step(), (Tokens{{1, 1}, {2, 9}}));  // what the budget leaves
  EXPECT_EQ(driver.step(), (Tokens{{1, 1}, {2, 3}}));
  EXPECT_EQ(driver.step(), (Tokens{{1, 1}, {2, 1}}));
}

TEST(SchedulerTest, TheLongPrefillThresholdBoundsEveryChunk) {
  SchedulerConfig c = config(20);
  c.long_prefill_token_threshold = 6;
  Scheduler scheduler(c, kv_cache(20, 4));
  Driver driver(scheduler);
  scheduler.add_request(make_request(1, 14, 4));
  scheduler.add_request(make_request(2, 14, 4));
  EXPECT_EQ(driver.step(), (Tokens{{1, 6}, {2, 6}}));
  EXPECT_EQ(driver.step(), (Tokens{{1, 6}, {2, 6}}));
  EXPECT_EQ(driver.step(), (Tokens{{1, 2}, {2, 2}}));
}

TEST(SchedulerTest, OutOfBlocksTheYoungestIsPreemptedAndTheOldestGoesOn) {
  Scheduler scheduler(config(16), kv_cache(/*usable_blocks=*/4, /*block_size=*/4));
  Driver driver(scheduler);
  scheduler.add_request(make_request(1, 8, 8));
  scheduler.add_request(make_request(2, 6, 8));
  EXPECT_EQ(driver.step(), (Tokens{{1, 8}, {2, 6}}));  // 2 + 2 blocks: none is left
  EXPECT_EQ(driver.step(), (Tokens{{1, 1}}));          // 1 needs a third block, and takes 2's
  EXPECT_EQ(driver.plan.preempted_req_ids, std::vector<RequestId>{2});
  EXPECT_EQ(scheduler.stats().num_free_blocks, 1);
  EXPECT_EQ(scheduler.stats().num_preemptions, 1U);
  while (scheduler.has_unfinished_requests()) ASSERT_FALSE(driver.step().empty());
  EXPECT_EQ(scheduler.stats().num_free_blocks, 4);
}

TEST(SchedulerTest, APreemptedRequestIsRecomputedWithItsOutput) {
  Scheduler scheduler(config(16), kv_cache(4, 4));
  Driver driver(scheduler);
  scheduler.add_request(make_request(1, 8, 2));
  scheduler.add_request(make_request(2, 6, 8));
  driver.step();
  driver.step();                               // 2 is preempted with one output token; 1 finishes
  EXPECT_EQ(driver.step(), (Tokens{{2, 3}}));  // 7 tokens, of which one block of 4 is still cached
  ASSERT_EQ(driver.plan.scheduled_cached_reqs.size(), 1U);
  EXPECT_TRUE(driver.plan.scheduled_cached_reqs[0].resumed_from_preemption);
  EXPECT_EQ(driver.plan.scheduled_cached_reqs[0].num_computed_tokens, 4);
}

TEST(SchedulerTest, WithPriorityTheLeastUrgentIsPreempted) {
  SchedulerConfig c = config(16);
  c.policy = "priority";
  Scheduler scheduler(c, kv_cache(4, 4));
  Driver driver(scheduler);
  scheduler.add_request(make_request(1, 6, 8, /*priority=*/5));
  scheduler.add_request(make_request(2, 8, 8, /*priority=*/-5));
  EXPECT_EQ(driver.step(), (Tokens{{1, 6}, {2, 8}}));
  EXPECT_EQ(driver.step(), (Tokens{{2, 1}}));
  EXPECT_EQ(driver.plan.preempted_req_ids, std::vector<RequestId>{1});
}

TEST(SchedulerTest, AVictimAlreadyPlannedIsTakenOutOfThePlan) {
  SchedulerConfig c = config(16);
  c.policy = "priority";
  Scheduler scheduler(c, kv_cache(4, 4));
  Driver driver(scheduler);
  scheduler.add_request(make_request(1, 5, 8, /*priority=*/5));  // planned first each step
  driver.step();
  scheduler.add_request(make_request(2, 8, 8, /*priority=*/-5));
  driver.step();
  const Tokens planned = driver.step();
  EXPECT_EQ(planned, (Tokens{{2, 1}}));
  EXPECT_EQ(driver.plan.total_num_scheduled_tokens, 1);
  EXPECT_TRUE(std::none_of(driver.plan.scheduled_cached_reqs.begin(), driver.plan.scheduled_cached_reqs.end(),
                           [](const CachedRequestData& cached) { return cached.request_id == 1; }));
  while (scheduler.has_unfinished_requests()) ASSERT_FALSE(driver.step().empty());
  EXPECT_EQ(scheduler.stats().num_free_blocks, 4);
}

TEST(SchedulerTest, AfterTwoPreemptionsTheNextRequestStillRuns) {
  SchedulerConfig c = config(16);
  c.policy = "priority";
  c.long_prefill_token_threshold = 8;
  Scheduler scheduler(c, kv_cache(/*usable_blocks=*/6, /*block_size=*/4));
  Driver driver(scheduler);
  scheduler.add_request(make_request(1, 1, 8, /*priority=*/5));
  driver.step();
  scheduler.add_request(make_request(2, 24, 8, /*priority=*/4));
  EXPECT_EQ(driver.step(), (Tokens{{1, 1}, {2, 8}}));
  scheduler.add_request(make_request(3, 2, 8, /*priority=*/0));
  EXPECT_EQ(driver.step(), (Tokens{{1, 1}, {2, 8}, {3, 2}}));  // 1 + 4 + 1 blocks: none is left
  // 2 needs two blocks: it takes the one of 1, who stands before it, and then gives up itself.
  EXPECT_EQ(driver.step(), (Tokens{{3, 1}}));
  EXPECT_EQ(driver.plan.preempted_req_ids, (std::vector<RequestId>{1, 2}));

  // The step that was taken back would have filled 1's block: nobody may find what was never computed.
  EngineCoreRequest same = make_request(4, 1, 8, /*priority=*/-9);
  same.prompt_token_ids = {1000, 7, 7, 7, 9};
  scheduler.add_request(std::move(same));
  driver.step();
  ASSERT_EQ(driver.plan.scheduled_new_reqs.size(), 1U);
  EXPECT_EQ(driver.plan.scheduled_new_reqs[0].num_computed_tokens, 0);
}

TEST(SchedulerTest, UrgentRequestsAreServedFirst) {
  SchedulerConfig c = config(8);
  c.policy = "priority";
  Scheduler scheduler(c, kv_cache(20, 4));
  Driver driver(scheduler);
  scheduler.add_request(make_request(1, 8, 4, /*priority=*/0));
  scheduler.add_request(make_request(2, 8, 4, /*priority=*/-1));
  EXPECT_EQ(driver.step(), (Tokens{{2, 8}}));
}

TEST(SchedulerTest, MaxNumSeqsBoundsTheBatch) {
  SchedulerConfig c = config(16);
  c.max_num_seqs = 1;
  Scheduler scheduler(c, kv_cache(20, 4));
  Driver driver(scheduler);
  scheduler.add_request(make_request(1, 4, 1));
  scheduler.add_request(make_request(2, 4, 1));
  EXPECT_EQ(driver.step(), (Tokens{{1, 4}}));
  EXPECT_EQ(driver.step(), (Tokens{{2, 4}}));
  EXPECT_EQ(driver.plan.finished_req_ids, std::vector<RequestId>{1});
}

TEST(SchedulerTest, StopTokensEndARequestOnlyAfterMinTokens) {
  Scheduler scheduler(config(16), kv_cache(20, 4));
  Driver driver(scheduler);
  EngineCoreRequest eos = make_request(1, 4, 10);
  eos.eos_token_ids = {7};
  eos.sampling_params.min_tokens = 3;
  EngineCoreRequest stop = make_request(2, 4, 10);
  stop.sampling_params.stop_token_ids = {7};
  scheduler.add_request(std::move(eos));
  scheduler.add_request(std::move(stop));
  driver.step();
  ASSERT_EQ(driver.outputs.outputs.size(), 2U);
  EXPECT_EQ(driver.outputs.outputs[0].finish_reason, FinishReason::kNone);
  EXPECT_EQ(driver.outputs.outputs[1].finish_reason, FinishReason::kStop);
  EXPECT_EQ(driver.outputs.outputs[1].stop_token_id, 7);
  driver.step();
  driver.step();
  EXPECT_EQ(driver.outputs.outputs.at(0).finish_reason, FinishReason::kStop);
  EXPECT_FALSE(driver.outputs.outputs.at(0).stop_token_id.has_value());
}

TEST(SchedulerTest, OneFailedRequestLeavesTheOthersRunning) {
  Scheduler scheduler(config(16), kv_cache(20, 4));
  scheduler.add_request(make_request(1, 4, 10));
  scheduler.add_request(make_request(2, 4, 10));
  SchedulerOutput plan;
  scheduler.schedule(plan);
  EngineCoreOutputs outputs;
  scheduler.update_from_output(plan, {plan.step_id, {{1, {}, {}, "NaN"}, {2, {7}, {}, ""}}, ""}, outputs);
  EXPECT_EQ(outputs.outputs[0].finish_reason, FinishReason::kError);
  EXPECT_EQ(outputs.outputs[0].error, "NaN");
  EXPECT_EQ(scheduler.unfinished_request_ids(), std::vector<RequestId>{2});
}

TEST(SchedulerTest, PlansAheadOfUnknownTokensUpToMaxTokens) {
  Scheduler scheduler(config(16), kv_cache(20, 4));
  scheduler.add_request(make_request(1, 4, /*max_tokens=*/2));
  SchedulerOutput first, second, third;
  scheduler.schedule(first);
  scheduler.schedule(second);
  EXPECT_EQ(second.total_num_scheduled_tokens, 1);  // the first token, whatever it is
  scheduler.schedule(third);
  EXPECT_EQ(third.total_num_scheduled_tokens, 0);  // the second is the last
}

TEST(SchedulerTest, AnIdInUseIsRefused) {
  Scheduler scheduler(config(16), kv_cache(20, 4));
  scheduler.add_request(make_request(1, 4, 2));
  EXPECT_THROW(scheduler.add_request(make_request(1, 4, 2)), InvalidArgument);
  EXPECT_FALSE(scheduler.finish_request(9, RequestStatus::kFinishedAborted));
}

}  // namespace
}  // namespace quire
