// Steps on a device whose tokens are not known on the host when their requests leave, come back or go.
#include "worker/runner_rig.h"
#include "worker/scheduler_output_builder.h"

namespace quire {
namespace {

// The token of step 2 is not known here when the request leaves, nor when it comes back.
TEST(DeviceStepsTest, ARequestThatLeavesWithATokenInFlightComesBackWithIt) {
  const auto script = [] {
    SchedulerOutputBuilder steps;
    Script script;
    script.push_back({steps.next().add(1, {50, 51}, 2, {1}).add(2, {60}, 1, {2}).scheduler_output, {}});
    script.push_back({steps.next().compute(1, 2, 3).compute(2, 1, 2).scheduler_output, {}});
    script.push_back({steps.next().compute(2, 2, 3).scheduler_output, {}});
    script.push_back({steps.next().compute(1, 3, 4).compute(2, 3, 4).scheduler_output, {}});
    const BlockId others[] = {5};
    script.push_back({steps.next().compute(1, 0, 5, true, others).compute(2, 4, 5).scheduler_output, {}});
    script.back().scheduler_output.scheduled_reqs[0].resumed_from_preemption = 1;
    return script;
  }();
  const Outputs host = run(RunnerRig::Options{}, script),
                device = run({.on_device = true, .in_flight = 2}, script);
  for (size_t i = 0; i < script.size(); ++i)
    EXPECT_EQ(host[i].sampled_token_ids, device[i].sampled_token_ids) << i;
}

// A KV connector could not load the first block: the token that was sampled without it is nobody's, and the
// tokens of that block, which a device was never sent, are computed after all.
TEST(DeviceStepsTest, ARequestThatGoesBackForgetsWhatItSampled) {
  const RunnerRig::Options on_device{.on_device = true, .in_flight = 1, .graphs = false, .hurried = false};
  const std::vector<int32_t> prompt = prompt_of(20);
  for (const float repetition_penalty : {1.0F, 1.3F}) {
    std::vector<std::vector<int32_t>> tokens;
    for (const bool goes_back : {false, true}) {
      for (const RunnerRig::Options& options : {RunnerRig::Options{}, on_device}) {
        RunnerRig rig(options);
        SchedulerOutputBuilder steps;
        steps.next().add(1, prompt, 20, {1, 2});
        steps.scheduler_output.scheduled_new_reqs[0].sampling_params.edit().repetition_penalty =
            repetition_penalty;
        if (goes_back) {
          ScheduledRequest& first = steps.scheduler_output.scheduled_reqs[0];
          first.num_computed_tokens = 16;
          steps.scheduler_output.total_num_scheduled_tokens = first.num_tokens = 4;
          rig.run(steps.scheduler_output);
          rig.run(steps.next().compute(1, 0, 8, /*samples=*/false).scheduler_output);
          steps.next().compute(1, 8, 20);
        }
        std::vector<int32_t>& sampled = tokens.emplace_back();
        for (int32_t end = 20; end < 26; ++end) {
          sampled.push_back(rig.run(steps.scheduler_output).sampled_token_ids.at(0));
          steps.next().compute(1, end, end + 1);
        }
      }
    }
    for (const auto& sampled : tokens) EXPECT_EQ(sampled, tokens[0]);
  }
}

// A request's row and the memory of its tokens may be another's by the time its last token is known.
TEST(DeviceStepsTest, ARequestForgottenInFlightLeavesNothingBehind) {
  const auto script = [](bool with_first) {
    SchedulerOutputBuilder steps;
    Script script;
    steps.next();
    if (with_first) steps.add(1, {50, 51}, 2, {1});
    script.push_back({steps.add(2, {60}, 1, {2}).scheduler_output, {}});
    steps.next();
    if (with_first) steps.scheduler_output.finished_req_ids = {1};
    script.push_back({steps.add(3, {70, 71, 72, 73}, 4, {3}).compute(2, 1, 2).scheduler_output, {}});
    script.push_back({steps.next().compute(2, 2, 3).compute(3, 4, 5).scheduler_output, {}});
    return script;
  };
  const RunnerRig::Options options{.on_device = true, .in_flight = 2};
  const Outputs with = run(options, script(true)), without = run(options, script(false));
  EXPECT_EQ(with[0].results.size(), 2U);
  EXPECT_EQ(with[0].sampled_token_ids[1], without[0].sampled_token_ids[0]);
  for (size_t i : {1U, 2U}) EXPECT_EQ(with[i].sampled_token_ids, without[i].sampled_token_ids);
}

// Others decode on, step after step, when a request that sits out is said to have ended.
TEST(DeviceStepsTest, ARequestEndsWhileStepsRepeat) {
  RunnerRig rig({.on_device = true, .in_flight = 2});
  SchedulerOutputBuilder steps;
  rig.run(steps.next().add(1, {50, 51}, 2, {1}).add(2, {60, 61}, 2, {2}).scheduler_output);
  int32_t end = 2;
  for (; end < 4; ++end) rig.run(steps.next().compute(1, end, end + 1).scheduler_output);
  steps.next().compute(1, end, end + 1).scheduler_output.finished_req_ids = {2};
  rig.run(steps.scheduler_output);
  for (++end; end < 7; ++end) rig.run(steps.next().compute(1, end, end + 1).scheduler_output);
  // Who is not forgotten is not new.
  const ModelRunnerOutput again = rig.run(steps.next().add(2, {60, 61}, 2, {2}).scheduler_output);
  EXPECT_EQ(again.sampled_token_ids.size(), 1U);
}

// What a step is sampled by lies where another request's was before, and the first two steps are no repeats.
TEST(DeviceStepsTest, RepeatsAreSampledAsTheStepThatTheyRepeat) {
  using Change = void (*)(NewRequestData&);
  const Change changes[] = {
      [](NewRequestData& data) { data.seed = 7; },
      [](NewRequestData& data) { data.sampling_params.edit().top_k = 3; },
      [](NewRequestData& data) { data.sampling_params.edit().top_p = 0.3F; },
      [](NewRequestData& data) { data.sampling_params.edit().min_p = 0.3F; },
  };
  const auto script_of = [](Change change) {
    SchedulerOutputBuilder steps;
    Script script;
    for (const RequestId id : {1, 2}) {
      steps.next().add(id, {50, 51}, 2, {static_cast<BlockId>(id)});
      if (id == 2) {
        NewRequestData& data = steps.scheduler_output.scheduled_new_reqs[0];
        data.sampling_params.edit().temperature = 2;
        change(data);
        steps.scheduler_output.finished_req_ids = {1};
      }
      script.push_back({steps.scheduler_output, {}});
      for (int32_t end = 3; end <= 14; ++end)
        script.push_back({steps.next().compute(id, end - 1, end).scheduler_output, {}});
    }
    return script;
  };
  for (size_t change = 0; change < std::size(changes); ++change) {
    const Script script = script_of(changes[change]);
    const Outputs host = run(RunnerRig::Options{}, script),
                  device = run({.on_device = true, .in_flight = 2}, script);
    for (size_t i = 0; i < script.size(); ++i)
      EXPECT_EQ(host[i].sampled_token_ids, device[i].sampled_token_ids) << change << " in step " << i;
  }
}

// Two rows are full: what one samples then is not the other's first token.
TEST(DeviceStepsTest, RowsThatAreFullKeepToThemselves) {
  constexpr int32_t kEnd = RunnerRig::kMaxModelLen;
  const auto script = [] {
    SchedulerOutputBuilder steps;
    Script script;
    script.push_back({steps.next().add(1, {50, 51}, 2, {1}).add(2, {60, 61}, 2, {2}).scheduler_output, {}});
    for (int32_t end = 3; end <= kEnd; ++end) {
      steps.next();
      for (const RequestId id : {1, 2}) {
        const BlockId block[] = {static_cast<BlockId>(id + end)};
        const bool fills = (end - 1) % RunnerRig::kBlockSize == 0;
        steps.compute(id, end - 1, end, true, std::span(block).first(fills ? 1 : 0));
      }
      script.push_back({steps.scheduler_output, {}});
    }
    for (const RequestId id : {1, 2}) {  // read again, from their first tokens on
      const BlockId others[] = {30, 31, 32};
      script.push_back({steps.next().compute(id, 0, kEnd - 1, true, others).scheduler_output, {}});
      script.back().scheduler_output.scheduled_reqs[0].resumed_from_preemption = 1;
    }
    return script;
  }();
  const Outputs host = run(RunnerRig::Options{}, script),
                device = run({.on_device = true, .in_flight = 2}, script);
  for (size_t i = 0; i < script.size(); ++i)
    EXPECT_EQ(host[i].sampled_token_ids, device[i].sampled_token_ids) << i;
}

// Enqueueing waits for nothing: the host is free before the device has begun.
TEST(DeviceStepsTest, AStepIsOnlyEnqueued) {
  RunnerRig rig({.on_device = true, .in_flight = 2});
  SchedulerOutputBuilder steps;
  const SchedulerOutput first = steps.next().add(1, {50, 51}, 2, {1}).scheduler_output,
                        second = steps.next().compute(1, 2, 3).scheduler_output;
  const int before = rig.device.num_host_waits;
  for (const SchedulerOutput* scheduler_output : {&first, &second}) {
    rig.runner->execute_model(*scheduler_output);
    rig.runner->sample_tokens(*scheduler_output, nullptr);
  }
  EXPECT_EQ(rig.device.num_host_waits, before);
  ModelRunnerOutput output;
  for (int i = 0; i < 2; ++i) rig.runner->finish_step(output);
  EXPECT_EQ(rig.device.num_host_waits, before + 2);
}

}  // namespace
}  // namespace quire
