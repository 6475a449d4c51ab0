// The executor on the bundled model, with steps written by hand.
#include <gtest/gtest.h>

#include "executor/executor.h"
#include "util/count_allocations.h"
#include "worker/scheduler_output_builder.h"

namespace quire {
namespace {

constexpr int32_t kNumBlocks = 64;

class LocalExecutorTest : public testing::TestWithParam<bool> {
 protected:
  // The model's layers dealt out to groups in turn.
  std::unique_ptr<Executor> make_executor(size_t num_groups = 1, int32_t tensor_parallel_size = 1) const {
    EngineConfig config;
    config.tensor_parallel_size = tensor_parallel_size;
    config.model = QUIRE_DEMO_MODEL;
    config.max_model_len = 256;
    config.max_num_seqs = 8;
    config.max_num_batched_tokens = 128;
    config.num_threads = 2;
    config.async_scheduling = GetParam();
    auto executor = make_local_executor(config);
    KVCacheConfig kv_cache;
    kv_cache.groups.resize(num_groups);
    const auto specs = executor->kv_cache_specs();
    for (size_t layer = 0; layer < specs.size(); ++layer) {
      KVCacheGroup& group = kv_cache.groups[layer % num_groups];
      group.spec = specs[layer];
      group.layers.push_back(static_cast<int32_t>(layer));
      group.num_blocks = kNumBlocks;
    }
    executor->initialize_kv_cache(kv_cache);
    return executor;
  }
  static void run(Executor& executor, const SchedulerOutput& scheduler_output, ModelRunnerOutput& output) {
    executor.launch(scheduler_output);
    executor.sample(scheduler_output.step_id, nullptr);
    executor.collect(scheduler_output.step_id, output);
    EXPECT_EQ(output.error, "");
  }
};

TEST_P(LocalExecutorTest, ASteadyStepAllocatesNothing) {
  if (!allocations_are_counted()) GTEST_SKIP() << "the sanitizer's operator new";
  const auto executor = make_executor();
  SchedulerOutputBuilder steps;
  ModelRunnerOutput output;
  steps.next();
  for (int32_t i = 0; i < 4; ++i) {
    steps.add(static_cast<RequestId>(i + 1), prompt_of(20), 20, {2 * i + 1, 2 * i + 2});
  }
  run(*executor, steps.scheduler_output, output);
  uint64_t before = 0;
  for (int32_t step = 0; step < 40; ++step) {
    if (step == 10) before = num_allocations();
    steps.next();
    for (int32_t i = 0; i < 4; ++i) {
      // Every 16th step each of them enters a new block.
      const BlockId next = 10 + step + i;
      const bool enters_block = (20 + step) % 16 == 0;
      steps.compute(static_cast<RequestId>(i + 1), 20 + step, 21 + step, true,
                    {&next, enters_block ? size_t{1} : 0});
    }
    run(*executor, steps.scheduler_output, output);
  }
  EXPECT_EQ(num_allocations() - before, 0U);
}

TEST_P(LocalExecutorTest, LayersMayBelongToGroupsOfTheirOwn) {
  std::vector<std::vector<int32_t>> produced;
  for (const size_t num_groups : {1, 2, 8}) {
    const auto executor = make_executor(num_groups);
    SchedulerOutputBuilder steps(num_groups);
    ModelRunnerOutput output;
    std::vector<int32_t>& tokens = produced.emplace_back();
    run(*executor, steps.next().add(1, prompt_of(40), 40, {5, 3, 9}).scheduler_output, output);
    for (int32_t i = 0; i < 8; ++i) {
      tokens.push_back(output.sampled_token_ids.at(0));
      run(*executor, steps.next().compute(1, 40 + i, 41 + i).scheduler_output, output);
    }
  }
  EXPECT_EQ(produced[0], produced[1]);
  EXPECT_EQ(produced[0], produced[2]);
}

TEST_P(LocalExecutorTest, ABlockWithoutMemoryIsForgottenAndNoOther) {
  const auto executor = make_executor(2);
  SchedulerOutputBuilder steps(2);
  ModelRunnerOutput output;
  steps.next().add(1, prompt_of(40), 40, {1, 2, 3}).add(2, prompt_of(40), 40, {4, 5, 6});
  for (NewRequestData& data : steps.scheduler_output.scheduled_new_reqs)
    data.sampling_params.edit().logprobs = 0;
  run(*executor, steps.scheduler_output, output);
  ASSERT_EQ(output.logprobs.size(), 2U);
  EXPECT_EQ(output.logprobs[0].positions[0][0].logprob, output.logprobs[1].positions[0][0].logprob);
  // Between steps, in a step that computes nothing: the last block of the second request goes, in one group.
  steps.next().scheduler_output.kv_extents = {{0, 6, 1, 0}, {1, 7, 40, 0}, {0, 7, 5, 1}};
  run(*executor, steps.scheduler_output, output);
  EXPECT_TRUE(output.results.empty());
  run(*executor, steps.next().compute(1, 39, 40).scheduler_output, output);
  const float intact = output.logprobs.at(0).positions[0][0].logprob;
  run(*executor, steps.next().compute(2, 39, 40).scheduler_output, output);
  EXPECT_NE(output.logprobs.at(0).positions[0][0].logprob, intact);
}

TEST_P(LocalExecutorTest, RanksMeetAgainAfterAStepThatFailed) {
  for (const int32_t ranks : {1, 2}) {
    const auto executor = make_executor(1, ranks);
    SchedulerOutputBuilder steps;
    ModelRunnerOutput output;
    run(*executor, steps.next().add(1, prompt_of(5), 5, {1}).scheduler_output, output);
    const auto first = output.sampled_token_ids;
    steps.next().compute(77, 5, 6);  // nobody knows it
    executor->launch(steps.scheduler_output);
    executor->sample(steps.scheduler_output.step_id, nullptr);
    executor->collect(steps.scheduler_output.step_id, output);
    EXPECT_NE(output.error, "");
    EXPECT_EQ(output.worker_lost, 0);
    run(*executor, steps.next().add(2, prompt_of(5), 5, {2}).scheduler_output, output);
    EXPECT_EQ(output.sampled_token_ids, first);
  }
}

// Ranks meet inside a step: were one to leave before a step that the other has begun, it would wait for ever.
TEST_P(LocalExecutorTest, AnExecutorThatGoesFinishesWhatWasLaunched) {
  for (int round = 0; round < 10; ++round) {
    SchedulerOutputBuilder first, second;  // outlive the executor, which reads them
    const auto executor = make_executor(1, 2);
    first.next().add(1, prompt_of(40), 40, {1, 2, 3});
    second.next().next().compute(1, 40, 41);
    executor->launch(first.scheduler_output);
    executor->sample(first.scheduler_output.step_id, nullptr);
    if (executor->max_in_flight_steps() < 2) continue;
    executor->launch(second.scheduler_output);
    executor->sample(second.scheduler_output.step_id, nullptr);
  }
}

TEST_P(LocalExecutorTest, FinishedRequestsMayBeForgottenWithoutAStep) {
  const auto executor = make_executor();
  SchedulerOutputBuilder steps;
  ModelRunnerOutput output;
  run(*executor, steps.next().add(1, prompt_of(5), 5, {1}).add(2, prompt_of(7), 7, {2}).scheduler_output,
      output);
  steps.next().scheduler_output.finished_req_ids = {1};
  run(*executor, steps.scheduler_output, output);
  run(*executor, steps.next().compute(2, 7, 8).scheduler_output, output);
  EXPECT_EQ(output.results.at(0).request_id, 2U);
  run(*executor, steps.next().add(1, prompt_of(5), 5, {1}).scheduler_output, output);  // its id is free again
}

INSTANTIATE_TEST_SUITE_P(SyncAndAsync, LocalExecutorTest, testing::Bool());

}  // namespace
}  // namespace quire
