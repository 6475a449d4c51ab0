// Log-probabilities of prompts, however their computation is cut up, on the host and on a device.
#include <tuple>

#include "worker/runner_rig.h"
#include "worker/scheduler_output_builder.h"

namespace quire {
namespace {

constexpr int32_t kLength = 30;

// What comes next after each beginning of the prompt, sampled one by one: the same numbers another way.
std::vector<PositionLogprobs> expected_logprobs(int32_t num_top) {
  const std::vector<int32_t> prompt = prompt_of(kLength);
  std::vector<PositionLogprobs> expected;
  RunnerRig rig({});
  for (int32_t length = 1; length < kLength; ++length) {
    PositionLogprobs position;
    for (const bool by_id : {true, false}) {
      SchedulerOutputBuilder steps;
      const auto id = static_cast<RequestId>(2 * length + (by_id ? 1 : 0));
      steps.next().add(id, {prompt.begin(), prompt.begin() + length}, length, {1, 2});
      SamplingParams& params = steps.scheduler_output.scheduled_new_reqs[0].sampling_params.edit();
      if (by_id) {
        params.logprob_token_ids = {prompt[static_cast<size_t>(length)]};
      } else {
        params.logprobs = num_top;
      }
      const auto found = rig.run(steps.scheduler_output).logprobs.at(0).positions.at(0);
      position.insert(position.end(), found.begin() + 1, found.end());
      steps.next().scheduler_output.finished_req_ids = {id};
      rig.run(steps.scheduler_output);
    }
    expected.push_back(std::move(position));
  }
  return expected;
}

void expect_same(const std::vector<PositionLogprobs>& found, const std::vector<PositionLogprobs>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i].size(), expected[i].size()) << i;
    for (size_t k = 0; k < found[i].size(); ++k) {
      EXPECT_EQ(found[i][k].token_id, expected[i][k].token_id) << i << " " << k;
      EXPECT_EQ(found[i][k].rank, expected[i][k].rank) << i << " " << k;
      EXPECT_NEAR(found[i][k].logprob, expected[i][k].logprob, 1e-4) << i << " " << k;
    }
  }
}

std::vector<PositionLogprobs> all_of(const Outputs& outputs, RequestId id) {
  std::vector<PositionLogprobs> all;
  for (const ModelRunnerOutput& output : outputs) {
    for (const RequestLogprobs& entry : output.prompt_logprobs) {
      if (output.results.at(entry.result_index).request_id == id)
        all.insert(all.end(), entry.positions.begin(), entry.positions.end());
    }
  }
  return all;
}

class PromptLogprobsTest : public testing::TestWithParam<std::tuple<bool, int32_t>> {
 protected:
  RunnerRig::Options options() const {
    const bool on_device = std::get<0>(GetParam());
    RunnerRig::Options options;
    options.on_device = options.graphs = on_device;
    options.in_flight = on_device ? 2 : 1;
    return options;
  }
  int32_t num_top() const { return std::get<1>(GetParam()); }
  void want(SchedulerOutputBuilder& steps) const {
    steps.scheduler_output.scheduled_new_reqs.back().num_prompt_logprobs = num_top();
  }
};

// Beside it there is a request that decodes and asks for log-probabilities of its own, and one that wants
// none.
TEST_P(PromptLogprobsTest, ChunksGiveWhatFollowsEachOfTheirTokens) {
  const auto expected = expected_logprobs(num_top());
  for (const int32_t chunk : {kLength, 7, 1}) {
    SchedulerOutputBuilder steps;
    Script script;
    steps.next().add(1, prompt_of(5, 9), 5, {1, 7, 8});
    steps.scheduler_output.scheduled_new_reqs[0].sampling_params.edit().logprobs = 1;
    script.push_back({steps.scheduler_output, {}});
    for (int32_t begin = 0, at = 5; begin < kLength; begin += chunk, ++at) {
      const int32_t end = std::min(begin + chunk, kLength);
      steps.next().compute(1, at, at + 1);
      if (begin == 0) {
        steps.add(2, prompt_of(kLength), end, {2, 3});
        want(steps);
        steps.add(3, prompt_of(4, 7), 4, {4});
      } else {
        steps.compute(2, begin, end, end == kLength);
      }
      script.push_back({steps.scheduler_output, {}});
    }
    RunnerRig rig(options());
    const Outputs outputs = run(rig, script, options().in_flight);
    expect_same(all_of(outputs, 2), expected);
    EXPECT_TRUE(all_of(outputs, 1).empty());
    EXPECT_TRUE(all_of(outputs, 3).empty());
    EXPECT_EQ(outputs.back().results.at(1).num_tokens, 1);
  }
}

TEST_P(PromptLogprobsTest, WhatWasComputedBeforeAPreemptionIsNotComputedAgain) {
  const auto expected = expected_logprobs(num_top());
  SchedulerOutputBuilder steps;
  Script script;
  steps.next().add(1, prompt_of(4, 9), 4, {1}).add(2, prompt_of(kLength), 12, {2});
  want(steps);
  script.push_back({steps.scheduler_output, {}});
  script.push_back({steps.next().compute(1, 4, 5).scheduler_output, {}});
  const BlockId others[] = {5, 6};
  steps.next().compute(1, 5, 6).compute(2, 0, 20, /*samples=*/false, others);
  steps.scheduler_output.scheduled_reqs[1].resumed_from_preemption = 1;
  script.push_back({steps.scheduler_output, {}});
  script.push_back({steps.next().compute(1, 6, 7).compute(2, 20, kLength).scheduler_output, {}});
  script.push_back({steps.next().compute(1, 7, 8).compute(2, kLength, kLength + 1).scheduler_output, {}});
  RunnerRig rig(options());
  const Outputs outputs = run(rig, script, options().in_flight);
  expect_same(all_of(outputs, 2), expected);
  EXPECT_EQ(outputs[0].prompt_logprobs.at(0).positions.size(), 12U);
  EXPECT_EQ(outputs[2].prompt_logprobs.at(0).positions.size(), 8U);
  EXPECT_TRUE(outputs[4].prompt_logprobs.empty());
}

TEST_P(PromptLogprobsTest, APromptOfOneTokenHasNone) {
  SchedulerOutputBuilder steps;
  steps.next().add(1, {77}, 1, {1});
  want(steps);
  RunnerRig rig(options());
  EXPECT_TRUE(rig.run(steps.scheduler_output).prompt_logprobs.empty());
  steps.next().compute(1, 1, 2).scheduler_output.finished_req_ids = {};
  EXPECT_EQ(rig.run(steps.scheduler_output).sampled_token_ids.size(), 1U);
}

// Listed by the kernel, none besides the token itself, and from whole rows.
INSTANTIATE_TEST_SUITE_P(Samplers, PromptLogprobsTest,
                         testing::Combine(testing::Values(false, true), testing::Values(3, 0, 150)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) ? "device" : "host") +
                                  std::to_string(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace quire
