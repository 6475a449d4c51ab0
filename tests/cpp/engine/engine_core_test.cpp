#include "engine/engine_core.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <tuple>

#include "engine/shadow_executor.h"

namespace quire {
namespace {

constexpr int32_t kBlockSize = 16;

EngineConfig small_config(int32_t usable_blocks) {
  EngineConfig config;
  config.model = "shadow";
  config.block_size = kBlockSize;
  config.num_gpu_blocks_override = usable_blocks + 1;
  config.max_num_seqs = 8;
  config.max_num_batched_tokens = 40;
  return config;
}

EngineCoreRequest make_request(RequestId id, std::vector<int32_t> prompt, int32_t max_tokens,
                               bool ignore_eos = true) {
  EngineCoreRequest request;
  request.request_id = id;
  request.prompt_token_ids = std::move(prompt);
  request.sampling_params.max_tokens = max_tokens;
  if (!ignore_eos) request.eos_token_ids = {kShadowEos};
  return request;
}

// An engine core over the shadow model, and what came out of it.
struct Harness {
  Harness(const EngineConfig& config, int32_t max_model_len, int32_t max_in_flight) {
    auto owned = std::make_unique<ShadowExecutor>(kBlockSize, max_model_len, max_in_flight);
    executor = owned.get();
    core = std::make_unique<EngineCore>(config, std::move(owned));
    num_free_at_start = free_blocks();
  }
  int32_t free_blocks() const { return core->scheduler().stats().num_free_blocks; }
  bool step() {
    EngineCoreOutputs outputs;
    const bool stepped = core->step_once(outputs);
    for (EngineCoreOutput& output : outputs.outputs) {
      auto& tokens = produced[output.request_id];
      const auto ids = outputs.new_token_ids(output);
      tokens.insert(tokens.end(), ids.begin(), ids.end());
      if (output.finish_reason != FinishReason::kNone) finished[output.request_id] = output.finish_reason;
    }
    return stepped;
  }
  void run() {
    while (core->has_unfinished_requests()) ASSERT_TRUE(step());
  }

  ShadowExecutor* executor;
  std::unique_ptr<EngineCore> core;
  int32_t num_free_at_start = 0;
  std::map<RequestId, std::vector<int32_t>> produced;
  std::map<RequestId, FinishReason> finished;
};

// Steps in flight, policy, prefix caching, long_prefill_token_threshold.
class RandomOperationsTest : public testing::TestWithParam<std::tuple<int, std::string, bool, int>> {};

TEST_P(RandomOperationsTest, OutputsAreRightAndEveryBlockComesBack) {
  const auto [max_in_flight, policy, caching, threshold] = GetParam();
  EngineConfig config = small_config(/*usable_blocks=*/14);
  config.scheduling_policy = policy;
  config.enable_prefix_caching = caching;
  config.long_prefill_token_threshold = threshold;
  constexpr int32_t kMaxModelLen = 200;
  Harness harness(config, kMaxModelLen, max_in_flight);
  std::mt19937 rng(7);
  const auto uniform = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(rng);
  };

  struct Sent {
    std::vector<int32_t> prompt;
    int32_t max_tokens;
    bool ignore_eos, aborted = false;
  };
  std::map<RequestId, Sent> sent;
  std::vector<RequestId> live;
  RequestId next_id = 1;
  for (int operation = 0; operation < 10000; ++operation) {
    const int32_t kind = uniform(0, 9);
    if (kind < 2 && live.size() < 12) {
      // Prompts often share a prefix with others.
      std::vector<int32_t> prompt(static_cast<size_t>(uniform(1, 120)));
      const int32_t family = uniform(0, 3);
      for (size_t i = 0; i < prompt.size(); ++i) {
        prompt[i] = i < 64 ? static_cast<int32_t>(i * 7 + static_cast<size_t>(family)) % kShadowVocabSize
                           : uniform(0, 49);
      }
      const Sent request{prompt, uniform(1, kMaxModelLen - static_cast<int32_t>(prompt.size())),
                         uniform(0, 1) == 0};
      auto message = make_request(next_id, prompt, request.max_tokens, request.ignore_eos);
      message.priority = uniform(-2, 2);
      sent[next_id] = request;
      live.push_back(next_id++);
      harness.core->add_request(std::move(message));
    } else if (kind == 2 && !live.empty()) {
      const RequestId id = live[static_cast<size_t>(uniform(0, static_cast<int32_t>(live.size()) - 1))];
      sent[id].aborted = !harness.finished.contains(id);
      harness.core->abort_requests({&id, 1});
      std::erase(live, id);
    } else {
      harness.step();
      std::erase_if(live, [&](RequestId id) { return harness.finished.contains(id); });
    }
    ASSERT_FALSE(testing::Test::HasFailure());
  }
  harness.run();
  EXPECT_EQ(harness.free_blocks(), harness.num_free_at_start);
  EXPECT_LE(harness.executor->max_step_tokens, config.max_num_batched_tokens);
  EXPECT_LE(harness.executor->max_step_requests, config.max_num_seqs);
  int num_finished = 0;
  for (const auto& [id, request] : sent) {
    const auto expected = shadow_output(request.prompt, request.max_tokens, request.ignore_eos);
    const auto& produced = harness.produced[id];
    if (request.aborted) {
      ASSERT_LE(produced.size(), expected.size());
      EXPECT_TRUE(std::equal(produced.begin(), produced.end(), expected.begin())) << id;
    } else {
      EXPECT_EQ(produced, expected) << id;
      ++num_finished;
    }
  }
  EXPECT_GT(num_finished, 100);
  const SchedulerStats stats = harness.core->scheduler().stats();
  EXPECT_GT(stats.num_preemptions, 50U);
  EXPECT_EQ(stats.prefix_cache_hits > 1000, caching);
}

INSTANTIATE_TEST_SUITE_P(All, RandomOperationsTest,
                         testing::Combine(testing::Values(1, 2, 3), testing::Values("fcfs", "priority"),
                                          testing::Bool(), testing::Values(0, 24)));

TEST(EngineCoreTest, LongPromptsAreComputedInChunks) {
  Harness harness(small_config(14), 200, 1);
  harness.core->add_request(make_request(1, std::vector<int32_t>(100, 5), 3));
  harness.step();
  EXPECT_TRUE(harness.produced.empty());  // 40 of 100
  harness.step();
  EXPECT_TRUE(harness.produced.empty());  // 80
  harness.step();
  EXPECT_EQ(harness.produced[1].size(), 1U);
  harness.run();
  EXPECT_EQ(harness.produced[1], shadow_output(std::vector<int32_t>(100, 5), 3, true));
  EXPECT_EQ(harness.finished[1], FinishReason::kLength);
}

TEST(EngineCoreTest, AnAbortFreesItsBlocksAtOnceEvenInFlight) {
  Harness harness(small_config(14), 200, 2);
  harness.core->add_request(make_request(1, std::vector<int32_t>(30, 5), 50));
  for (int i = 0; i < 5; ++i) harness.step();
  const RequestId id = 1;
  harness.core->abort_requests({&id, 1});
  EXPECT_EQ(harness.free_blocks(), harness.num_free_at_start);
  harness.run();
}

TEST(EngineCoreTest, AFailedStepEndsItsRequestsAndNoOthers) {
  EngineConfig config = small_config(14);
  config.max_num_seqs = 1;
  Harness harness(config, 200, 2);
  harness.executor->fail_step = 2;
  harness.core->add_request(make_request(1, {1, 2, 3}, 20));
  harness.core->add_request(make_request(2, {4, 5, 6}, 5));
  harness.run();
  EXPECT_EQ(harness.finished[1], FinishReason::kError);
  EXPECT_EQ(harness.produced[2], shadow_output({4, 5, 6}, 5, true));
  EXPECT_EQ(harness.free_blocks(), harness.num_free_at_start);
}

TEST(EngineCoreTest, BlocksOfAFailedStepAreNotReused) {
  Harness harness(small_config(14), 200, 1);
  harness.executor->fail_step = 1;
  const std::vector<int32_t> prompt(33, 5);
  harness.core->add_request(make_request(1, prompt, 4));
  harness.run();
  harness.core->add_request(make_request(2, prompt, 4));
  harness.run();  // the shadow cache complains if 2 reads what 1 never wrote
  EXPECT_EQ(harness.produced[2], shadow_output(prompt, 4, true));
}

TEST(EngineCoreTest, ARequestGoesOnWhereAnotherEngineLeftOff) {
  const std::vector<int32_t> prompt = {3, 1, 4};
  const auto whole = shadow_output(prompt, 10, true);
  Harness harness(small_config(14), 200, 1);
  EngineCoreRequest request = make_request(1, prompt, 10);
  request.output_token_ids = {whole.begin(), whole.begin() + 6};
  harness.core->add_request(std::move(request));
  harness.run();
  EXPECT_EQ(harness.produced[1], std::vector<int32_t>(whole.begin() + 6, whole.end()));
}

TEST(EngineCoreTest, RefusesACacheTooSmallForOneSequence) {
  EXPECT_THROW(Harness(small_config(2), 200, 1), InvalidArgument);
}

TEST(EngineCoreTest, WithoutChunksTheBudgetMustHoldTheLongestPrompt) {
  EngineConfig config = small_config(14);
  config.enable_chunked_prefill = false;
  EXPECT_THROW(Harness(config, 200, 1), InvalidArgument);
  config.max_num_batched_tokens = 200;
  EXPECT_NO_THROW(Harness(config, 200, 1));
}

}  // namespace
}  // namespace quire
