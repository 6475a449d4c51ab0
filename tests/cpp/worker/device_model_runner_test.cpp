// Steps on a device, one or two of them in flight, against the same steps on the host.
#include <algorithm>
#include <cstring>
#include <semaphore>
#include <thread>
#include <utility>

#include "quire/error.h"
#include "worker/runner_rig.h"
#include "worker/scheduler_output_builder.h"
#include "worker/script_writer.h"

namespace quire {
namespace {

constexpr RunnerRig::Options kHost{};

void expect_same_logprobs(const PositionLogprobs& expected, const PositionLogprobs& actual) {
  ASSERT_EQ(expected.size(), actual.size());
  const auto close = [](float a, float b) { return std::abs(a - b) < 1e-4F; };
  for (size_t k = 0; k < expected.size(); ++k) {
    EXPECT_NEAR(expected[k].logprob, actual[k].logprob, 1e-4);
    EXPECT_NEAR(expected[k].rank, actual[k].rank, 1);
    // Neighbours as likely as each other may change places: the two round differently.
    const bool tied = (k > 0 && close(expected[k].logprob, expected[k - 1].logprob)) ||
                      (k + 1 < expected.size() && close(expected[k].logprob, expected[k + 1].logprob)) ||
                      k + 1 == expected.size();
    if (k == 0 || !tied) {
      EXPECT_EQ(expected[k].token_id, actual[k].token_id);
    }
  }
}

void expect_same(const Outputs& expected, Outputs actual, size_t least_logprobs) {
  ASSERT_EQ(expected.size(), actual.size());
  size_t num_tokens = 0, num_logprobs = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "step " << i);
    ModelRunnerOutput host = expected[i], device = actual[i];
    ASSERT_EQ(host.step_id, device.step_id);
    ASSERT_EQ(host.results.size(), device.results.size());
    for (size_t r = 0; r < host.results.size(); ++r) {
      ASSERT_EQ(host.results[r].request_id, device.results[r].request_id);
      ASSERT_EQ(host.results[r].num_tokens, device.results[r].num_tokens) << r;
    }
    ASSERT_EQ(host.sampled_token_ids, device.sampled_token_ids);
    // Filed by result, in the order of the rows, which differs.
    ASSERT_EQ(host.logprobs.size(), device.logprobs.size());
    for (auto* output : {&host, &device}) {
      std::sort(output->logprobs.begin(), output->logprobs.end(),
                [](const auto& a, const auto& b) { return a.result_index < b.result_index; });
    }
    for (size_t k = 0; k < host.logprobs.size(); ++k) {
      ASSERT_EQ(host.logprobs[k].result_index, device.logprobs[k].result_index);
      ASSERT_EQ(device.logprobs[k].positions.size(), 1U);
      expect_same_logprobs(host.logprobs[k].positions[0], device.logprobs[k].positions[0]);
    }
    num_tokens += host.sampled_token_ids.size();
    num_logprobs += host.logprobs.size();
  }
  EXPECT_GT(num_tokens, expected.size());
  EXPECT_GE(num_logprobs, least_logprobs);
}

class DeviceModelRunnerTest : public testing::TestWithParam<RunnerRig::Options> {};

TEST_P(DeviceModelRunnerTest, AnySchedulesTokensAreTheHosts) {
  for (const uint32_t seed : {1U, 2U}) {
    const Script script = ScriptWriter(seed).write(60);
    expect_same(run(kHost, script), run(GetParam(), script), script.size() / 4);
  }
}

int num_sampled_by_graphs = 0;

// Most requests sample plainly, so that graphs do.
TEST_P(DeviceModelRunnerTest, TokensOfGraphsAreTheHosts) {
  num_sampled_by_graphs = 0;
  for (const uint32_t seed : {1U, 2U}) {
    const Script script = ScriptWriter(seed, ScriptWriter::Wishes::kFew).write(80);
    RunnerRig rig(GetParam());
    rig.ops.sample = [](const LaunchContext& ctx, const SamplingArgs& args) {
      num_sampled_by_graphs += ctx.into != nullptr;
      fake::sample(ctx, args);
    };
    expect_same(run(kHost, script), run(rig, script, GetParam().in_flight), 1);
  }
  if (GetParam().graphs) {
    EXPECT_GT(num_sampled_by_graphs, 10);
  } else {
    EXPECT_EQ(num_sampled_by_graphs, 0);
  }
}

TEST_P(DeviceModelRunnerTest, GraphsAreReplayedWhenTheyFit) {
  RunnerRig rig(GetParam());
  SchedulerOutputBuilder steps;
  Script script;
  for (RequestId id : {1, 2, 3})
    script.push_back({steps.next().add(id, {5, 6, 7}, 3, {static_cast<BlockId>(id)}).scheduler_output, {}});
  script.push_back({steps.next().compute(1, 3, 4).compute(2, 3, 4).compute(3, 3, 4).scheduler_output, {}});
  script.push_back({steps.next().scheduler_output, {}});
  const Outputs outputs = run(rig, script, GetParam().in_flight);
  std::vector<CudagraphMode> modes;
  for (const ModelRunnerOutput& output : outputs) {
    modes.push_back(output.cudagraph_mode);
    EXPECT_EQ(output.has_cudagraphs, GetParam().graphs);
  }
  using enum CudagraphMode;
  EXPECT_EQ(modes, GetParam().graphs ? (std::vector{kPiecewise, kPiecewise, kPiecewise, kFull, kNone})
                                     : std::vector(5, kNone));
  const auto& dispatcher = rig.runner->cudagraph_dispatcher();
  EXPECT_EQ(dispatcher.count(CudagraphMode::kFull), GetParam().graphs ? 1U : 0U);
  EXPECT_EQ(dispatcher.count(CudagraphMode::kPiecewise), GetParam().graphs ? 3U : 0U);
}

// A worker's thread goes on while another one takes the results.
TEST_P(DeviceModelRunnerTest, StepsAreFinishedOnAnotherThread) {
  const Script script = ScriptWriter(3).write(40);
  const Outputs expected = run(kHost, script);
  RunnerRig rig(GetParam());
  std::counting_semaphore<> places(GetParam().in_flight), sampled(0);
  std::thread worker([&] {
    for (const Step& step : script) {
      places.acquire();
      rig.runner->execute_model(step.scheduler_output);
      rig.runner->sample_tokens(step.scheduler_output, step.masks());
      sampled.release();
    }
  });
  Outputs outputs(script.size());
  for (ModelRunnerOutput& output : outputs) {
    sampled.acquire();
    rig.runner->finish_step(output);
    places.release();
  }
  worker.join();
  expect_same(expected, outputs, script.size() / 4);
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceModelRunnerTest,
                         testing::Values(RunnerRig::Options{true, 1, false, false},
                                         RunnerRig::Options{true, 2, false, false},
                                         RunnerRig::Options{true, 2, false, true},
                                         RunnerRig::Options{true, 1, true, true},
                                         RunnerRig::Options{true, 2, true, false}),
                         [](const auto& info) {
                           return std::string(info.param.in_flight == 1 ? "one" : "two") +
                                  (info.param.graphs ? "_graphs" : "") +
                                  (info.param.hurried ? "_hurried" : "");
                         });

// Three requests replay the graph of four. What the one that left has left in the graph's inputs must not be
// computed again, and its block may be another's by now: no block but those of the three changes.
TEST(DeviceGraphTest, PaddedRowsWriteNothing) {
  constexpr RequestId kNumRequests = 4;
  for (RequestId left = 1; left <= kNumRequests; ++left) {  // one of them in the last row
    SCOPED_TRACE(left);
    RunnerRig rig({.on_device = true, .graphs = true});
    const size_t block_bytes = rig.pages.size() / RunnerRig::kNumBlocks;
    const auto block = [&](size_t i) { return rig.pages.data() + i * block_bytes; };
    const auto is_going_on = [&](size_t i) { return i >= 1 && i <= kNumRequests && i != left; };
    SchedulerOutputBuilder steps;
    for (RequestId id = 1; id <= kNumRequests; ++id)
      rig.run(steps.next().add(id, {5, 6, 7}, 3, {static_cast<BlockId>(id)}).scheduler_output);
    steps.next();
    for (RequestId id = 1; id <= kNumRequests; ++id) steps.compute(id, 3, 4);
    ASSERT_EQ(rig.run(steps.scheduler_output).cudagraph_mode, CudagraphMode::kFull);
    std::memset(block(left), 0x3C, block_bytes);  // by another one
    const std::vector<std::byte> before(block(0), block(RunnerRig::kNumBlocks));
    steps.next().scheduler_output.finished_req_ids = {left};
    for (RequestId id = 1; id <= kNumRequests; ++id) {
      if (id != left) steps.compute(id, 4, 5);
    }
    const ModelRunnerOutput output = rig.run(steps.scheduler_output);
    ASSERT_EQ(output.cudagraph_mode, CudagraphMode::kFull);
    EXPECT_EQ(output.results.size(), kNumRequests - 1);
    for (size_t i = 0; i < RunnerRig::kNumBlocks; ++i) {
      const bool changed = std::memcmp(block(i), before.data() + i * block_bytes, block_bytes) != 0;
      EXPECT_EQ(changed, is_going_on(i)) << "block " << i;
    }
  }
}

// Kernels that were enqueued read and write what goes with the runner.
TEST(DeviceGraphTest, ARunnerThatGoesWaitsForWhatItHasEnqueued) {
  RunnerRig rig({.on_device = true, .in_flight = 2});
  const size_t block_bytes = rig.pages.size() / RunnerRig::kNumBlocks;
  const auto is_written = [&](size_t block) {
    const std::byte* begin = rig.pages.data() + block * block_bytes;
    return std::any_of(begin, begin + block_bytes, [](std::byte byte) { return byte != std::byte{0}; });
  };
  SchedulerOutputBuilder steps;
  for (RequestId id : {1, 2}) {
    steps.next().add(id, {50, 51}, 2, {static_cast<BlockId>(id)});
    rig.runner->execute_model(steps.scheduler_output);
    rig.runner->sample_tokens(steps.scheduler_output, nullptr);
  }
  ASSERT_FALSE(is_written(2));  // nobody has waited
  rig.runner.reset();
  EXPECT_TRUE(is_written(1));
  EXPECT_TRUE(is_written(2));
}

bool refuses_to_sample = false;

// The step that failed has no result; those after it have their own.
TEST(DeviceModelRunnerFailureTest, ALaunchRefusedWhileSamplingFailsThatStepAlone) {
  RunnerRig rig({true, 2, false, false});
  rig.ops.sample = [](const LaunchContext& ctx, const SamplingArgs& args) {
    if (std::exchange(refuses_to_sample, false)) {
      ctx.error->failed = true;
    } else {
      fake::sample(ctx, args);
    }
  };
  SchedulerOutputBuilder steps;
  const auto finish = [&] {
    ModelRunnerOutput output;
    rig.runner->finish_step(output);
    EXPECT_EQ(output.step_id, steps.scheduler_output.step_id);
    EXPECT_EQ(output.sampled_token_ids.size(), 1U);
  };
  const auto run_step = [&](const SchedulerOutput& scheduler_output) {
    rig.runner->execute_model(scheduler_output);
    rig.runner->sample_tokens(scheduler_output, nullptr);
  };
  run_step(steps.next().add(1, {5, 6, 7}, 3, {1}).scheduler_output);
  finish();
  refuses_to_sample = true;
  EXPECT_THROW(run_step(steps.next().compute(1, 3, 4).scheduler_output), InternalError);
  rig.platform->begin_step();
  for (RequestId id : {2, 3, 4}) {
    steps.next().add(id, {5, 6, 7}, 3, {static_cast<BlockId>(id)}).scheduler_output.finished_req_ids = {id -
                                                                                                        1};
    run_step(steps.scheduler_output);
    finish();
  }
}

}  // namespace
}  // namespace quire
