#include "engine/engine_core.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <random>
#include <tuple>

#include "engine/shadow_executor.h"
#include "quire/flight_recorder.h"
#include "request/make_request.h"
#include "util/sanitized.h"

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

// An engine core over the shadow model, and what came out of it.
struct Harness {
  Harness(const EngineConfig& config, int32_t max_model_len, int32_t max_in_flight)
      : Harness(config, std::make_unique<ShadowExecutor>(kBlockSize, max_model_len, max_in_flight)) {}
  Harness(const EngineConfig& config, std::unique_ptr<ShadowExecutor> owned) {
    executor = owned.get();
    core = std::make_unique<EngineCore>(config, std::move(owned), SchedulerParts{}, [this] { return now; });
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
    // A step may do nothing but preempt.
    for (int num_dry = 0; core->has_unfinished_requests(); num_dry = step() ? 0 : num_dry + 1)
      ASSERT_LT(num_dry, 2);
  }

  double now = 1.0;
  ShadowExecutor* executor;
  std::unique_ptr<EngineCore> core;
  int32_t num_free_at_start = 0;
  std::map<RequestId, std::vector<int32_t>> produced;
  std::map<RequestId, FinishReason> finished;
};

// What a run of random operations is made of.
struct Mix {
  const char* name;
  int max_in_flight = 1;
  std::string policy = "fcfs";
  bool caching = true;
  int threshold = 0;
  std::vector<KVCacheSpec> layers = {shadow_spec(kBlockSize)};
  int num_drafts = 0;
  int64_t recorder_bytes = 16 << 20;
  int32_t max_loras = 0;  // of seven
  bool has_lora_copies = false;
};
void PrintTo(const Mix& mix, std::ostream* out) { *out << mix.name; }

// What a search must find, and the scores' order.
std::vector<std::vector<int32_t>> shadow_search(const std::vector<int32_t>& prompt,
                                                const SamplingParams& params, bool ignore_eos) {
  BeamSearch search(params, ignore_eos ? std::vector<int32_t>{} : std::vector<int32_t>{kShadowEos});
  uint64_t prefix = 0;
  for (int32_t token : prompt) prefix = extend_prefix(prefix, token);
  std::vector<uint64_t> prefixes = {prefix};
  while (true) {
    std::vector<PositionLogprobs> all;
    for (uint64_t before : prefixes) all.push_back(shadow_logprobs(before));
    std::vector<std::span<const Logprob>> candidates;
    for (const PositionLogprobs& logprobs : all)
      candidates.push_back(std::span(logprobs).first(static_cast<size_t>(search.num_candidates())));
    if (!search.advance(candidates)) break;
    std::vector<uint64_t> next;
    for (const BeamSearch::Beam& beam : search.beams())
      next.push_back(extend_prefix(prefixes[beam.parent], beam.token_id));
    prefixes = next;
  }
  std::vector<std::vector<int32_t>> found;
  for (const BeamSearch::Sequence& sequence : search.best()) found.push_back(sequence.token_ids);
  return found;
}

class RandomOperationsTest : public testing::TestWithParam<Mix> {};

TEST_P(RandomOperationsTest, OutputsAreRightEveryBlockComesBackAndTheRecordingReplays) {
  const Mix& mix = GetParam();
  const bool caching = mix.caching;
  EngineConfig config = small_config(/*usable_blocks=*/14);
  config.scheduling_policy = mix.policy;
  config.enable_prefix_caching = mix.caching;
  config.long_prefill_token_threshold = mix.threshold;
  config.flight_recorder_bytes = mix.recorder_bytes;
  config.enable_lora = mix.max_loras > 0;
  config.max_loras = std::max(mix.max_loras, 1);
  config.flight_recorder_minutes = 1e6;
  constexpr int32_t kMaxModelLen = 200;
  auto executor =
      std::make_unique<ShadowExecutor>(mix.layers, kMaxModelLen, mix.max_in_flight, mix.num_drafts);
  executor->has_lora_copies = mix.has_lora_copies;
  Harness harness(config, std::move(executor));
  std::mt19937 rng(7);
  const auto uniform = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(rng);
  };

  struct Sent {
    std::vector<int32_t> prompt;
    int32_t max_tokens;
    bool ignore_eos, aborted = false;
    SamplingParams search;  // with a beam_width
  };
  std::map<RequestId, Sent> sent;
  std::vector<RequestId> live;
  RequestId next_id = 1;
  for (int operation = 0; operation < (kSanitized ? 3000 : 10000); ++operation) {
    harness.now += 0.01;
    const int32_t kind = uniform(0, 9);
    if (kind < 2 && live.size() < 12) {
      // Prompts often share a prefix with others.
      std::vector<int32_t> prompt(static_cast<size_t>(uniform(1, 120)));
      const int32_t family = uniform(0, 3);
      for (size_t i = 0; i < prompt.size(); ++i) {
        prompt[i] = i < 64 ? static_cast<int32_t>(i * 7 + static_cast<size_t>(family)) % kShadowVocabSize
                           : uniform(0, 49);
      }
      Sent request{prompt,
                   uniform(1, kMaxModelLen - static_cast<int32_t>(prompt.size())),
                   uniform(0, 1) == 0,
                   false,
                   {}};
      const bool searches = uniform(0, 4) == 0;
      if (searches) request.max_tokens = std::min(request.max_tokens, 40);
      auto message = make_request(next_id, prompt, request.max_tokens);
      if (searches) {
        SamplingParams& params = message.sampling_params.edit();
        params.beam_width = uniform(2, 6);
        params.n = uniform(1, params.beam_width);
        params.early_stopping = static_cast<EarlyStopping>(uniform(0, 2));
        request.search = params;
      }
      if (!request.ignore_eos) message.eos_token_ids = {kShadowEos};
      message.priority = uniform(-2, 2);
      message.user = std::string(1, static_cast<char>('a' + uniform(0, 2)));
      message.arrival_time = harness.now;
      if (mix.max_loras > 0) {
        message.lora_id = static_cast<LoraId>(uniform(0, 7));
        message.lora_name = message.lora_id == 0 ? "" : str("adapter", message.lora_id);
      }
      if (uniform(0, 15) == 0) message.deadline = harness.now + 0.1 * uniform(0, 20);
      sent[next_id] = request;
      live.push_back(next_id);
      next_id += static_cast<RequestId>(request.search.n);
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
  int num_searches = 0;
  for (const auto& [id, request] : sent) {
    if (request.search.beam_width > 1) {
      if (request.aborted || harness.finished[id] == FinishReason::kAbort) continue;  // cut short
      const auto expected = shadow_search(request.prompt, request.search, request.ignore_eos);
      for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(harness.produced[id + i], expected[i]) << id;
      ++num_searches;
      continue;
    }
    const auto expected = shadow_output(request.prompt, request.max_tokens, request.ignore_eos);
    const auto& produced = harness.produced[id];
    if (request.aborted || harness.finished[id] == FinishReason::kAbort) {
      ASSERT_LE(produced.size(), expected.size());
      EXPECT_TRUE(std::equal(produced.begin(), produced.end(), expected.begin())) << id;
    } else {
      EXPECT_EQ(produced, expected) << id;
      ++num_finished;
    }
  }
  EXPECT_GT(num_finished, kSanitized ? 50 : 100);
  EXPECT_GT(num_searches, kSanitized ? 0 : 5);
  const SchedulerStats stats = harness.core->scheduler().stats();
  EXPECT_GT(stats.num_expired_reqs, kSanitized ? 1U : 5U);
  EXPECT_EQ(stats.prefix_cache_hits > 1000, caching);
  EXPECT_EQ(stats.num_accepted_spec_tokens > 100, mix.num_drafts > 0);

  // What was recorded of it is decided again in the same way.
  const std::string path =
      testing::TempDir() + "quire_random_operations_" + mix.name + "-" + std::to_string(getpid()) + ".rec";
  harness.core->dump_flight_recorder(path);
  const ReplayReport report = replay_recording(path);
  std::remove(path.c_str());
  EXPECT_EQ(report.divergence, "");
  EXPECT_EQ(report.num_identical, report.num_steps);
  EXPECT_GT(report.num_steps, 20U);
  EXPECT_EQ(report.num_steps < stats.num_steps, mix.recorder_bytes < (1 << 20));
}

std::vector<Mix> mixes() {
  KVCacheSpec full = shadow_spec(kBlockSize);
  KVCacheSpec window = shadow_spec(kBlockSize, KVCacheKind::kSlidingWindow, 40);
  KVCacheSpec state = shadow_spec(kBlockSize, KVCacheKind::kState);
  for (KVCacheSpec* spec : {&full, &window, &state}) spec->page_bytes = 4096;  // a block is an extent
  constexpr int64_t kSmall = 65536;  // the ring drops its oldest segments
  return {
      {"plain", 1},
      {"in_flight_2", 2},
      {"in_flight_3", 3, "fcfs", true, 24},
      {"no_caching", 2, "fcfs", false},
      {"threshold", 1, "fcfs", true, 24},
      {"priority", 1, "priority"},
      {"priority_in_flight", 3, "priority", true, 24},
      {"priority_no_caching", 1, "priority", false},
      {"cache_aware", 1, "cache_aware"},
      {"cache_aware_in_flight", 2, "cache_aware", true, 24},
      {"fair", 1, "fair"},
      {"fair_in_flight", 2, "fair", true, 24, {full}, 0, kSmall},
      {"window", 2, "fcfs", true, 0, {window}},
      {"full_and_window", 1, "fcfs", true, 0, {full, window}, 0, kSmall},
      {"full_and_window_in_flight", 3, "priority", true, 24, {full, window}},
      {"full_and_state", 1, "fcfs", true, 0, {full, state}},
      {"full_and_state_in_flight", 2, "fair", true, 24, {full, state}, 0, kSmall},
      {"all_kinds", 2, "cache_aware", true, 0, {full, window, state}},
      {"drafts", 1, "fcfs", true, 0, {full}, 3},
      {"drafts_in_flight", 2, "priority", true, 0, {full}, 3, kSmall},
      {"drafts_and_window", 3, "fair", true, 24, {full, window}, 3},
      {"small_ring", 1, "fcfs", true, 0, {full}, 0, kSmall},
      {"loras", 1, "fcfs", true, 0, {full}, 0, kSmall, 2},
      {"loras_in_flight", 3, "priority", true, 24, {full}, 3, kSmall, 1},
      {"loras_cache_aware", 2, "cache_aware", true, 0, {full}, 0, kSmall, 3},
      {"loras_fair", 2, "fair", true, 24, {full, window}, 0, kSmall, 2},
      {"copied_loras", 1, "fcfs", true, 0, {full}, 0, kSmall, 3, true},
      {"copied_loras_in_flight", 2, "fcfs", true, 0, {full}, 0, kSmall, 4, true},
      {"copied_loras_cache_aware", 2, "cache_aware", true, 24, {full}, 0, kSmall, 2, true},
  };
}

INSTANTIATE_TEST_SUITE_P(All, RandomOperationsTest, testing::ValuesIn(mixes()),
                         [](const auto& info) { return std::string(info.param.name); });

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

TEST(EngineCoreTest, NoStepWaitsForAnAdapterThatComesWhileOthersCompute) {
  for (const int max_in_flight : {1, 2}) {
    EngineConfig config = small_config(/*usable_blocks=*/14);
    config.enable_lora = true;
    config.max_loras = 3;
    auto executor = std::make_unique<ShadowExecutor>(kBlockSize, /*max_model_len=*/200, max_in_flight);
    executor->has_lora_copies = true;
    Harness harness(config, std::move(executor));
    for (RequestId id = 1; id <= 3; ++id) {
      auto request = make_request(id, {1, 2, 3}, /*max_tokens=*/8);
      request.lora_id = static_cast<LoraId>(id);
      harness.core->add_request(std::move(request));
    }
    // The first one would be alone in its step, and waits; the others do not.
    for (int i = 0; i < max_in_flight; ++i) harness.step();
    EXPECT_EQ(harness.produced.size(), 1U);
    harness.step();
    EXPECT_EQ(harness.produced.size(), 3U);
    harness.run();
    for (RequestId id = 1; id <= 3; ++id) EXPECT_EQ(harness.produced[id], shadow_output({1, 2, 3}, 8, true));
  }
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

// The second request is in the third step alone, which was on its way when the second one failed.
TEST(EngineCoreTest, StepsBehindAFailedOneFailWhateverTheyReport) {
  EngineConfig config = small_config(14);
  config.max_num_seqs = 2;
  Harness harness(config, 200, 2);
  harness.executor->fail_step = 2;
  harness.core->add_request(make_request(1, std::vector<int32_t>(80, 5), 20));
  harness.core->add_request(make_request(2, {4, 5, 6}, 5));
  harness.core->add_request(make_request(3, {7, 8, 9}, 5));  // waits meanwhile
  harness.run();
  EXPECT_EQ(harness.finished[1], FinishReason::kError);
  EXPECT_EQ(harness.finished[2], FinishReason::kError);
  EXPECT_TRUE(harness.produced[2].empty());
  EXPECT_EQ(harness.produced[3], shadow_output({7, 8, 9}, 5, true));
  EXPECT_EQ(harness.free_blocks(), harness.num_free_at_start);
}

TEST(EngineCoreTest, AQueueTimeoutEndsWhatHasNotBegunAndNothingElse) {
  EngineConfig config = small_config(14);
  config.max_num_seqs = 1;
  Harness harness(config, 200, 1);
  for (const RequestId id : {RequestId{1}, RequestId{2}, RequestId{3}}) {
    EngineCoreRequest request = make_request(id, {5, 6, 7}, 4);
    if (id != 3) request.queue_deadline = 2.0;
    harness.core->add_request(std::move(request));
  }
  harness.step();
  harness.now = 1.9;
  harness.step();
  EXPECT_TRUE(harness.finished.empty());
  harness.now = 2.0;
  harness.step();
  EXPECT_EQ(harness.finished, (std::map<RequestId, FinishReason>{{2, FinishReason::kAbort}}));
  harness.run();
  EXPECT_EQ(harness.finished.at(1), FinishReason::kLength) << "it ran";
  EXPECT_EQ(harness.finished.at(3), FinishReason::kLength) << "it may wait";
  EXPECT_EQ(harness.produced[2].size(), 0U);
  EXPECT_EQ(harness.free_blocks(), harness.num_free_at_start);
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

// In every row of the batch, at its first token and later, with and without a step behind it and drafts.
TEST(EngineCoreTest, BystandersOfAFailingRequestGetTheTokensThatTheyWouldHaveWithoutIt) {
  const auto prompt = [](RequestId id) { return std::vector<int32_t>(5 + 9 * id, static_cast<int32_t>(id)); };
  constexpr RequestId kNumRequests = 4;
  for (const auto& [max_in_flight, num_drafts] : {std::pair{1, 0}, {2, 0}, {1, 2}}) {
    for (RequestId failing = 1; failing <= kNumRequests; ++failing) {
      for (const int32_t num_good : {0, 3}) {
        SCOPED_TRACE(testing::Message() << max_in_flight << " steps, " << num_drafts << " drafts, request "
                                        << failing << " fails after " << num_good);
        auto executor = std::make_unique<ShadowExecutor>(std::vector{shadow_spec(kBlockSize)}, 200,
                                                         max_in_flight, num_drafts);
        executor->failing_request = failing;
        executor->num_good_samples = num_good;
        Harness harness(small_config(30), std::move(executor));
        for (RequestId id = 1; id <= kNumRequests; ++id)
          harness.core->add_request(make_request(id, prompt(id), 12));
        harness.run();
        for (RequestId id = 1; id <= kNumRequests; ++id) {
          const auto whole = shadow_output(prompt(id), 12, true);
          if (id == failing) {
            EXPECT_EQ(harness.finished[id], FinishReason::kError);
            const auto& produced = harness.produced[id];
            ASSERT_LT(produced.size(), whole.size());
            EXPECT_TRUE(std::equal(produced.begin(), produced.end(), whole.begin()));
          } else {
            EXPECT_EQ(harness.finished[id], FinishReason::kLength);
            EXPECT_EQ(harness.produced[id], whole) << id;
          }
        }
        EXPECT_EQ(harness.free_blocks(), harness.num_free_at_start);
      }
    }
  }
}

TEST(EngineCoreTest, StepsThatFailInARowEndTheEngine) {
  for (const uint64_t num_failing : {7, 8}) {
    Harness harness(small_config(14), 200, 2);
    harness.executor->fail_step = 3;
    harness.executor->num_failing_steps = num_failing;
    const auto ask = [&] {
      for (RequestId id = 1; id <= 20; ++id) {
        harness.core->add_request(make_request(id, {1, 2, 3}, 4));
        harness.run();
      }
    };
    if (num_failing == 8) {
      EXPECT_THROW(ask(), InternalError);
    } else {
      ask();
      EXPECT_EQ(harness.finished[20], FinishReason::kLength);
    }
  }
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
