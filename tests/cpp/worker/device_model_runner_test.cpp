// Steps on a device, one or two of them in flight, against the same steps on the host.
#include <algorithm>
#include <cstring>
#include <random>
#include <semaphore>
#include <thread>
#include <utility>

#include "quire/error.h"
#include "worker/runner_rig.h"
#include "worker/scheduler_output_builder.h"

namespace quire {
namespace {

constexpr int32_t kMaxModelLen = RunnerRig::kMaxModelLen, kMaxSeqs = RunnerRig::kMaxSeqs,
                  kVocab = RunnerRig::kVocab;
constexpr RunnerRig::Options kHost{};

// Steps that do not depend on tokens, as a scheduler might make them.
class ScriptWriter {
 public:
  explicit ScriptWriter(uint32_t seed) : random_(seed) {
    for (BlockId block = 1; block < RunnerRig::kNumBlocks; ++block) free_blocks_.push_back(block);
  }
  Script write(int num_steps) {
    Script script;
    for (int i = 0; i < num_steps; ++i) write_step(script.emplace_back());
    return script;
  }

 private:
  struct Sequence {
    RequestId id;
    std::vector<int32_t> prompt;
    SamplingParams params;
    int32_t num_tokens, num_computed = 0;
    std::vector<BlockId> blocks;
    bool is_new = true, resumed = false, over = false;
  };

  int32_t uniform(int32_t low, int32_t high) { return std::uniform_int_distribution(low, high)(random_); }
  bool chance(double p) { return std::bernoulli_distribution(p)(random_); }

  SamplingParams any_params() {
    SamplingParams params;
    params.seed = random_();
    params.max_tokens = 1000;
    params.temperature = chance(0.5) ? 0.0F : 0.9F;
    if (chance(0.3)) params.top_k = uniform(1, 50);
    if (chance(0.3)) params.top_p = 0.8F;
    if (chance(0.2)) params.min_p = 0.05F;
    if (chance(0.2)) params.presence_penalty = 1.5F;
    if (chance(0.2)) params.frequency_penalty = 1.0F;
    if (chance(0.2)) params.repetition_penalty = 1.3F;
    if (chance(0.3)) params.logprobs = (std::vector{0, 1, 5, 100})[static_cast<size_t>(uniform(0, 3))];
    if (chance(0.3)) params.min_tokens = uniform(1, 10);
    if (chance(0.2)) params.stop_token_ids = {7, 2, 9};
    // Sometimes more than is sent with the rest, in one request or in several.
    if (chance(0.3)) {
      for (int32_t i = chance(0.4) ? 700 : 3; i > 0; --i)
        params.logit_bias[uniform(0, kVocab - 1)] = static_cast<float>(uniform(-8, 8));
      params.logit_bias[2] = 5;
    }
    return params;
  }
  void free_blocks(Sequence& sequence) {
    free_blocks_.insert(free_blocks_.end(), sequence.blocks.begin(), sequence.blocks.end());
    sequence.blocks.clear();
  }
  void preempt(Sequence& sequence) {
    free_blocks(sequence);
    sequence.num_computed = 0;
    sequence.resumed = true;
  }
  void schedule(Sequence& sequence, int32_t count, Step& step) {
    const auto needed = (sequence.num_computed + count + RunnerRig::kBlockSize - 1) / RunnerRig::kBlockSize;
    std::vector<BlockId> fresh;
    while (static_cast<int32_t>(sequence.blocks.size() + fresh.size()) < needed) {
      std::swap(free_blocks_[random_() % free_blocks_.size()], free_blocks_.back());
      fresh.push_back(free_blocks_.back());
      free_blocks_.pop_back();
    }
    const int32_t end = sequence.num_computed + count;
    const bool samples = end == sequence.num_tokens;
    if (sequence.is_new) {
      builder_.add(sequence.id, sequence.prompt, count, fresh);
      NewRequestData& data = builder_.scheduler_output.scheduled_new_reqs.back();
      data.sampling_params = sequence.params;
      data.seed = sequence.params.seed.value();
      data.eos_token_ids = {0, 2};
      // What was generated elsewhere is not prompt.
      if (sequence.prompt.size() > 3 && sequence.id % 3 == 0) {
        data.output_token_ids = {data.prompt_token_ids->back()};
        data.prompt_token_ids.edit().pop_back();
      }
    } else {
      builder_.compute(sequence.id, sequence.num_computed, end, samples, fresh);
      builder_.scheduler_output.scheduled_reqs.back().resumed_from_preemption = sequence.resumed;
    }
    builder_.scheduler_output.scheduled_reqs.back().samples = samples;
    sequence.is_new = sequence.resumed = false;
    sequence.blocks.insert(sequence.blocks.end(), fresh.begin(), fresh.end());
    sequence.num_computed = end;
    if (!samples) return;
    if (chance(0.3)) add_mask(step, sequence.id);
    // The last token allowed is sampled, and has no place.
    if (sequence.num_tokens == kMaxModelLen) {
      sequence.over = true;
    } else {
      ++sequence.num_tokens;
    }
  }
  void add_mask(Step& step, RequestId id) {
    if (!step.grammar) step.grammar.emplace();
    step.grammar->request_ids.push_back(id);
    for (int32_t word = 0; word < kVocab / 32; ++word)
      step.grammar->bitmask.push_back(static_cast<int32_t>(random_() & random_()));
  }
  void write_step(Step& step) {
    builder_.next();
    // Sequences that are over leave, and others while they are in flight.
    for (size_t i = 0; i < sequences_.size();) {
      Sequence& sequence = sequences_[i];
      if (!sequence.over && !chance(0.02)) {
        if (!sequence.is_new && chance(0.05)) preempt(sequence);
        ++i;
        continue;
      }
      if (!sequence.is_new) builder_.scheduler_output.finished_req_ids.push_back(sequence.id);
      free_blocks(sequence);
      sequences_.erase(sequences_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    while (sequences_.size() < kMaxSeqs + 2 && chance(0.6)) {
      Sequence& sequence = sequences_.emplace_back();
      sequence.id = ++last_id_;
      sequence.prompt.resize(static_cast<size_t>(uniform(1, 40)));
      for (int32_t& token : sequence.prompt) token = uniform(3, kVocab - 1);
      sequence.num_tokens = static_cast<int32_t>(sequence.prompt.size());
      sequence.params = any_params();
    }
    // Often only those that decode, sometimes nothing; most go on.
    const bool only_decodes = chance(0.4);
    int32_t budget = chance(0.05) ? 0 : RunnerRig::kMaxTokens, rows = 0;
    for (Sequence& sequence : sequences_) {
      const int32_t left = sequence.num_tokens - sequence.num_computed;
      if (budget == 0 || rows == kMaxSeqs || (only_decodes && left > 1) || chance(0.08)) continue;
      const int32_t count = std::min(chance(0.7) ? left : uniform(1, left), budget);
      schedule(sequence, count, step);
      budget -= count;
      ++rows;
    }
    step.scheduler_output = builder_.scheduler_output;
  }

  std::mt19937 random_;
  SchedulerOutputBuilder builder_;
  std::vector<Sequence> sequences_;
  std::vector<BlockId> free_blocks_;
  RequestId last_id_ = 0;
};

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

void expect_same(const Outputs& expected, Outputs actual) {
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
  EXPECT_GT(num_logprobs, expected.size() / 4);
}

class DeviceModelRunnerTest : public testing::TestWithParam<RunnerRig::Options> {};

TEST_P(DeviceModelRunnerTest, AnySchedulesTokensAreTheHosts) {
  for (const uint32_t seed : {1U, 2U}) {
    const Script script = ScriptWriter(seed).write(60);
    expect_same(run(kHost, script), run(GetParam(), script));
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
  expect_same(expected, outputs);
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

// ---- what a worker must not forget -------------------------------------------------------------------

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
  const Outputs host = run(kHost, script), device = run({.on_device = true, .in_flight = 2}, script);
  for (size_t i = 0; i < script.size(); ++i)
    EXPECT_EQ(host[i].sampled_token_ids, device[i].sampled_token_ids) << i;
}

// A KV connector could not load the first block: the token that was sampled without it is nobody's, and the
// tokens of that block, which a device was never sent, are computed after all.
TEST(DeviceStepsTest, ARequestThatGoesBackForgetsWhatItSampled) {
  const RunnerRig::Options on_device{.on_device = true, .in_flight = 1, .graphs = false, .hurried = false};
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 20; ++i) prompt.push_back(10 + i * 37 % 4000);
  for (const float repetition_penalty : {1.0F, 1.3F}) {
    std::vector<std::vector<int32_t>> tokens;
    for (const bool goes_back : {false, true}) {
      for (const RunnerRig::Options& options : {kHost, on_device}) {
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
