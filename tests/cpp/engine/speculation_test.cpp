// Drafts, from the scheduler to the workers and back, on the host and on a fake device: a request's tokens
// are those that it has without.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "device/fake_kernels.h"
#include "engine/speculation_rig.h"
#include "quire/error.h"
#include "quire/flight_recorder.h"
#include "request/make_request.h"
#include "worker/scheduler_output_builder.h"

namespace quire {
namespace {

struct SpeculationWorld {
  const char* name;
  bool on_device, graphs;
};

EngineConfig config_for(const SpeculationWorld& world) {
  EngineConfig config;
  config.model = QUIRE_DEMO_MODEL;
  config.max_model_len = 96;
  config.max_num_seqs = 8;
  config.max_num_batched_tokens = 64;
  config.num_threads = 1;
  config.kv_cache_memory_bytes = 16 << 20;
  config.enforce_eager = !world.graphs;
  config.gpu_memory_bytes = int64_t{world.graphs ? 420 : 120} << 20;
  return config;
}

EngineCoreRequest request_of(RequestId id, int32_t prompt_length, int32_t max_tokens) {
  EngineCoreRequest request =
      make_request(id, prompt_of(prompt_length, static_cast<int32_t>(id) * 131), max_tokens);
  request.sampling_params.edit().temperature = 0;
  return request;
}

// One of each kind.
std::vector<EngineCoreRequest> requests_of_all_kinds() {
  std::vector<EngineCoreRequest> requests;
  const auto add = [&](int32_t prompt_length, int32_t max_tokens) -> SamplingParams& {
    requests.push_back(request_of(requests.size() + 1, prompt_length, max_tokens));
    return requests.back().sampling_params.edit();
  };
  const auto add_random = [&](int32_t prompt_length, int32_t max_tokens) -> SamplingParams& {
    SamplingParams& params = add(prompt_length, max_tokens);
    params.temperature = 0.9F;
    requests.back().seed = 1234 + requests.size();
    return params;
  };
  add(30, 20);
  add_random(5, 25).top_p = 0.9F;
  add(11, 17).repetition_penalty = 1.5F;
  SamplingParams& frequent = add_random(17, 30);
  frequent.frequency_penalty = 1.2F;
  frequent.presence_penalty = 0.6F;
  add(70, 26);  // as far as max_model_len
  add_random(8, 21).logprobs = 2;
  add(20, 22).logprobs = 0;
  SamplingParams& biased = add(9, 24);
  biased.logit_bias = {{100, 4.0F}, {200, -100.0F}};
  biased.min_tokens = 9;
  biased.stop_token_ids = {100};
  add(4, 1);
  add_random(40, 23).top_k = 20;
  return requests;
}

class SpeculationTest : public testing::TestWithParam<SpeculationWorld> {
 protected:
  SpeculationTest() {
    FakeDeviceRuntime::reset();
    backend_.ops = &ops_;
    backend_.runtime = GetParam().on_device ? &FakeDeviceRuntime::table() : nullptr;
    config_.async_scheduling = false;
  }
  SpeculationRun run() { return run_to_end(config_, backend_, requests_); }
  SpeculationRun run_with(ScriptedDrafter::Script script, const SpeculationRun& expected) {
    Backend backend = backend_;
    const auto drafter = std::make_shared<ScriptedDrafter>(expected.outputs(), std::move(script));
    backend.speculation = {kNumDrafts, drafter};
    SpeculationRun run = run_to_end(config_, backend, requests_);
    size_t num_prompt_tokens = 0;
    for (const EngineCoreRequest& request : requests_) num_prompt_tokens += request.prompt_token_ids->size();
    EXPECT_EQ(drafter->num_prompt_tokens, num_prompt_tokens);
    return run;
  }

  KernelTable ops_ = GetParam().on_device ? fake_kernel_table() : fake::cpu();
  Backend backend_;
  EngineConfig config_ = config_for(GetParam());
  std::vector<EngineCoreRequest> requests_ = requests_of_all_kinds();
};

TEST_P(SpeculationTest, RightDraftsSaveStepsAndChangeNothing) {
  const SpeculationRun expected = run();
  const SpeculationRun actual =
      run_with([](RequestId, size_t) { return ScriptedDrafter::Share{kNumDrafts, kNumDrafts}; }, expected);
  expect_same(expected, actual);
  EXPECT_GT(actual.stats.num_spec_tokens, 100U);
  // Only what lies behind a request's end is not what it would have been.
  EXPECT_GE(actual.stats.num_accepted_spec_tokens * 10, actual.stats.num_spec_tokens * 8);
  EXPECT_LT(actual.stats.num_steps * 3, expected.stats.num_steps * 2);
  EXPECT_EQ(expected.stats.num_spec_tokens, 0U);
}

TEST_P(SpeculationTest, WrongDraftsChangeNothing) {
  const SpeculationRun expected = run();
  const SpeculationRun actual =
      run_with([](RequestId, size_t) { return ScriptedDrafter::Share{kNumDrafts, 0}; }, expected);
  expect_same(expected, actual);
  EXPECT_GT(actual.stats.num_spec_tokens, 100U);
  EXPECT_EQ(actual.stats.num_accepted_spec_tokens, 0U);
}

TEST_P(SpeculationTest, DraftsAreKeptAsFarAsTheyAreRight) {
  const SpeculationRun expected = run();
  expect_same(expected,
              run_with([](RequestId, size_t) { return ScriptedDrafter::Share{kNumDrafts, 1}; }, expected));
  // Any number of drafts, and for some requests only.
  const auto any = [](RequestId id, size_t place) {
    const auto mixed = static_cast<int32_t>((id * 7919 + place * 104729) >> 3);
    const int32_t num_drafts = id % 4 == 0 ? 0 : mixed % (kNumDrafts + 1);
    return ScriptedDrafter::Share{num_drafts, mixed / 5 % (num_drafts + 1)};
  };
  expect_same(expected, run_with(any, expected));
  // Blocks for fewer than run, and chunks of prompts beside drafts.
  config_.kv_cache_memory_bytes = 0;
  config_.num_gpu_blocks_override = 1 + 11;
  config_.max_num_batched_tokens = 24;
  const SpeculationRun actual = run_with(any, expected);
  expect_same(expected, actual);
  EXPECT_GT(actual.stats.num_preemptions, 0U);
  EXPECT_GT(actual.stats.num_accepted_spec_tokens, 0U);
}

TEST_P(SpeculationTest, AStopTokenAmongTheDraftsEndsTheRequest) {
  const SpeculationRun before = run();
  for (EngineCoreRequest& request : requests_) {
    const std::vector<int32_t>& tokens = before.results.at(request.request_id).token_ids;
    // In the middle of what a step accepts.
    if (request.request_id != 8 && tokens.size() > 8)
      request.sampling_params.edit().stop_token_ids = {tokens[6 + request.request_id % 3]};
  }
  const SpeculationRun expected = run();
  size_t num_stopped = 0;
  for (const auto& [id, result] : expected.results)
    num_stopped += result.finish_reason == FinishReason::kStop;
  EXPECT_GE(num_stopped, 6U);
  // Drafts know what would follow.
  const auto all_right = [](RequestId, size_t) { return ScriptedDrafter::Share{kNumDrafts, kNumDrafts}; };
  Backend backend = backend_;
  backend.speculation = {kNumDrafts, std::make_shared<ScriptedDrafter>(before.outputs(), all_right)};
  expect_same(expected, run_to_end(config_, backend, requests_));
}

TEST_P(SpeculationTest, StepsOfAsManyDraftsInEveryRowAreGraphs) {
  requests_.clear();
  for (const RequestId id : {1U, 2U, 4U}) requests_.push_back(request_of(id, 12, 1 + 5 * (1 + kNumDrafts)));
  const SpeculationRun expected = run();
  const SpeculationRun actual =
      run_with([](RequestId, size_t) { return ScriptedDrafter::Share{kNumDrafts, kNumDrafts}; }, expected);
  expect_same(expected, actual);
  EXPECT_EQ(actual.stats.num_steps, 6U);
  EXPECT_EQ(actual.stats.num_full_graph_steps, GetParam().graphs ? 5U : 0U);
  EXPECT_EQ(actual.stats.num_accepted_spec_tokens, 3U * 5 * kNumDrafts);
}

TEST_P(SpeculationTest, OneRankDraftsForAll) {
  if (GetParam().on_device) GTEST_SKIP() << "the fake is one device";
  config_.tensor_parallel_size = 2;
  const SpeculationRun expected = run();
  const SpeculationRun actual =
      run_with([](RequestId, size_t) { return ScriptedDrafter::Share{kNumDrafts, 2}; }, expected);
  expect_same(expected, actual);
  EXPECT_GT(actual.stats.num_accepted_spec_tokens, 50U);
}

// What drafters answered is recorded, and who answers from the recording schedules the same steps.
TEST_P(SpeculationTest, ARecordingIsReplayedWithItsDrafts) {
  const SpeculationRun expected = run();
  Backend backend = backend_;
  backend.speculation = {
      kNumDrafts, std::make_shared<ScriptedDrafter>(expected.outputs(), [](RequestId id, size_t place) {
        return ScriptedDrafter::Share{static_cast<int32_t>(place % (kNumDrafts + 1)),
                                      static_cast<int32_t>(id % 3)};
      })};
  const auto path = std::filesystem::temp_directory_path() /
                    ("speculation_" + std::string(GetParam().name) + std::to_string(getpid()));
  const SpeculationRun actual = run_to_end(config_, backend, requests_, path.string());
  expect_same(expected, actual);
  const ReplayReport report = replay_recording(path.string());
  std::filesystem::remove(path);
  EXPECT_EQ(report.divergence, "");
  EXPECT_EQ(report.num_steps, actual.stats.num_steps);
  EXPECT_EQ(report.num_identical, report.num_steps);
}

TEST_P(SpeculationTest, ADrafterNeedsTheTokensOfTheStepBefore) {
  backend_.speculation = {kNumDrafts, nullptr};
  config_.async_scheduling = true;
  EXPECT_THROW(run(), InvalidArgument);
  config_.async_scheduling.reset();
  EXPECT_EQ(make_local_executor(config_, backend_)->max_in_flight_steps(), 1);
}

INSTANTIATE_TEST_SUITE_P(Worlds, SpeculationTest,
                         testing::Values(SpeculationWorld{"Host", false, false},
                                         SpeculationWorld{"Device", true, false},
                                         SpeculationWorld{"Graphs", true, true}),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace quire
