// Drafts in steps written by hand: what a request that has them may go through next.
#include <gtest/gtest.h>

#include "quire/error.h"
#include "util/count_allocations.h"
#include "worker/runner_rig.h"
#include "worker/scheduler_output_builder.h"

namespace quire {
namespace {

constexpr RequestId kA = 1, kB = 2;
constexpr int32_t kLengthA = 10, kLengthB = 5;

SchedulerOutputBuilder& begin_both(SchedulerOutputBuilder& steps) {
  return steps.next()
      .add(kA, prompt_of(kLengthA, 1), kLengthA, {1})
      .add(kB, prompt_of(kLengthB, 2), kLengthB, {2});
}
std::vector<int32_t> result_tokens(const ModelRunnerOutput& output, size_t result) {
  const auto tokens = output.token_ids(output.results.at(result));
  return {tokens.begin(), tokens.end()};
}

class DraftsTest : public testing::TestWithParam<RunnerRig::Options> {
 protected:
  DraftsTest() {
    RunnerRig rig({});
    SchedulerOutputBuilder steps;
    begin_both(steps);
    for (int32_t i = 0; i < 6; ++i) {
      const ModelRunnerOutput output = rig.run(steps.scheduler_output);
      a_.push_back(result_tokens(output, 0).at(0));
      b_.push_back(result_tokens(output, 1).at(0));
      steps.next().compute(kA, kLengthA + i, kLengthA + i + 1).compute(kB, kLengthB + i, kLengthB + i + 1);
    }
  }
  void take() { script_.push_back({steps_.scheduler_output, {}}); }
  // The prompts, and then A with two right drafts and a wrong one.
  void write_drafts() {
    begin_both(steps_);
    take();
    steps_.next().compute(kA, kLengthA, kLengthA + 1).draft({a_[1], a_[2], a_[3] == 0 ? 1 : a_[3] - 1});
    steps_.compute(kB, kLengthB, kLengthB + 1);
    take();
  }
  Outputs run_script() { return run(GetParam(), script_); }

  SchedulerOutputBuilder steps_;
  Script script_;
  std::vector<int32_t> a_, b_;  // what they get without drafts
};

std::vector<int32_t> slice(const std::vector<int32_t>& tokens, size_t begin, size_t end) {
  return {tokens.begin() + static_cast<std::ptrdiff_t>(begin),
          tokens.begin() + static_cast<std::ptrdiff_t>(end)};
}

TEST_P(DraftsTest, TheNextStepSaysHowManyWereRight) {
  if (GetParam().in_flight > 1) GTEST_SKIP() << "it is made when they are known";
  write_drafts();
  steps_.next().compute(kA, kLengthA + 3, kLengthA + 4).compute(kB, kLengthB + 1, kLengthB + 2);
  take();
  const Outputs outputs = run_script();
  EXPECT_EQ(result_tokens(outputs[1], 0), slice(a_, 1, 4));
  EXPECT_EQ(result_tokens(outputs[1], 1), slice(b_, 1, 2));
  EXPECT_EQ(result_tokens(outputs[2], 0), slice(a_, 4, 5));
  EXPECT_EQ(result_tokens(outputs[2], 1), slice(b_, 2, 3));
}

TEST_P(DraftsTest, ThereAreLogProbabilitiesForWhatIsKept) {
  write_drafts();
  script_[0].scheduler_output.scheduled_new_reqs[0].sampling_params.edit().logprobs = 1;
  const Outputs outputs = run_script();
  ASSERT_EQ(outputs[1].logprobs.size(), 1U);
  EXPECT_EQ(outputs[1].logprobs[0].result_index, 0U);
  ASSERT_EQ(outputs[1].logprobs[0].positions.size(), 3U);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(outputs[1].logprobs[0].positions[i][0].token_id, a_[1 + i]);
}

TEST_P(DraftsTest, ARequestSitsOutTheStepAfter) {
  write_drafts();
  steps_.next().compute(kB, kLengthB + 1, kLengthB + 2);
  take();
  steps_.next().compute(kA, kLengthA + 3, kLengthA + 4).compute(kB, kLengthB + 2, kLengthB + 3);
  take();
  const Outputs outputs = run_script();
  EXPECT_EQ(result_tokens(outputs[1], 0), slice(a_, 1, 4));
  EXPECT_EQ(result_tokens(outputs[3], 0), slice(a_, 4, 5));
  EXPECT_EQ(result_tokens(outputs[3], 1), slice(b_, 3, 4));
}

TEST_P(DraftsTest, ARequestIsPreemptedAndComputedAgainInParts) {
  write_drafts();
  const BlockId others[] = {7};
  steps_.next().compute(kA, 0, 6, /*samples=*/false, others).compute(kB, kLengthB + 1, kLengthB + 2);
  steps_.scheduler_output.scheduled_reqs[0].resumed_from_preemption = 1;
  take();
  steps_.next().compute(kA, 6, kLengthA + 4).compute(kB, kLengthB + 2, kLengthB + 3);
  take();
  const Outputs outputs = run_script();
  EXPECT_EQ(outputs[2].results[0].num_tokens, 0);
  EXPECT_EQ(result_tokens(outputs[3], 0), slice(a_, 4, 5));
}

TEST_P(DraftsTest, EachDraftHasAMask) {
  write_drafts();
  GrammarOutput& grammar = script_[1].grammar.emplace();
  constexpr size_t kWords = RunnerRig::kVocab / 32;
  grammar.result_indices.assign(4, 0);
  grammar.bitmask.assign(4 * kWords, -1);
  // The second draft is right, and not permitted.
  grammar.bitmask[kWords + static_cast<size_t>(a_[2]) / 32] &= ~static_cast<int32_t>(1U << (a_[2] % 32));
  steps_.next().compute(kB, kLengthB + 1, kLengthB + 2);
  take();
  const Outputs outputs = run_script();
  const auto tokens = result_tokens(outputs[1], 0);
  ASSERT_EQ(tokens.size(), 2U);
  EXPECT_EQ(tokens[0], a_[1]);
  EXPECT_NE(tokens[1], a_[2]);
}

TEST_P(DraftsTest, AMaskOfWhatIsNotSampledIsOurOwnMistake) {
  write_drafts();
  GrammarOutput& grammar = script_[1].grammar.emplace();
  grammar.result_indices.assign(5, 0);
  grammar.bitmask.assign(5 * RunnerRig::kVocab / 32, -1);
  EXPECT_THROW(run_script(), InternalError);
}

// A scheduler may fill up rows with drafts that are none.
TEST_P(DraftsTest, PaddingDraftsAreNeverRight) {
  begin_both(steps_);
  steps_.draft({-1, -1});
  take();
  steps_.next().compute(kB, kLengthB, kLengthB + 1).draft({-1, -1, -1}).compute(kA, kLengthA, kLengthA + 1);
  take();
  const Outputs outputs = run_script();
  EXPECT_EQ(result_tokens(outputs[0], 1), slice(b_, 0, 1));
  EXPECT_EQ(result_tokens(outputs[1], 0), slice(b_, 1, 2));
  EXPECT_EQ(result_tokens(outputs[1], 1), slice(a_, 1, 2));
}

TEST_P(DraftsTest, MoreThanThereIsRoomForIsOurOwnMistake) {
  begin_both(steps_).draft({1, 2, 3, 4});
  take();
  EXPECT_THROW(run_script(), InternalError);
}

TEST(DraftsOnTheHostTest, ASteadyStepAllocatesNothing) {
  if (!allocations_are_counted()) GTEST_SKIP() << "the sanitizer's operator new";
  RunnerRig rig({.num_speculative_tokens = 3});
  SchedulerOutputBuilder steps;
  ModelRunnerOutput output;
  uint64_t before = 0;
  steps.next()
      .add(kA, prompt_of(kLengthA, 1), kLengthA, {1, 3, 4})
      .add(kB, prompt_of(kLengthB, 2), kLengthB, {2, 5, 6});
  for (int32_t i = 0; i < 25; ++i) {
    if (i == 10) before = num_allocations();
    const uint64_t at_build = num_allocations();
    if (i > 0) {
      steps.next().compute(kA, kLengthA + i - 1, kLengthA + i).draft({-1, -1, -1});
      steps.compute(kB, kLengthB + i - 1, kLengthB + i).draft({-1, -1});
    }
    before += num_allocations() - at_build;  // of this test
    rig.runner->execute_model(steps.scheduler_output);
    rig.runner->sample_tokens(steps.scheduler_output, nullptr);
    rig.runner->finish_step(output);
    ASSERT_EQ(output.sampled_token_ids.size(), 2U);
  }
  EXPECT_EQ(num_allocations(), before);
}

INSTANTIATE_TEST_SUITE_P(
    Worlds, DraftsTest,
    testing::Values(
        RunnerRig::Options{.num_speculative_tokens = 3},
        RunnerRig::Options{.on_device = true, .num_speculative_tokens = 3},
        RunnerRig::Options{.on_device = true, .in_flight = 2, .num_speculative_tokens = 3},
        RunnerRig::Options{.on_device = true, .in_flight = 2, .hurried = true, .num_speculative_tokens = 3},
        RunnerRig::Options{.on_device = true, .in_flight = 2, .graphs = true, .num_speculative_tokens = 3}));

}  // namespace
}  // namespace quire
