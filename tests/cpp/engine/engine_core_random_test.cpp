// Random operations on an engine core, with each kind of scheduling and cache, against the shadow model.
#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <random>
#include <tuple>

#include "engine/engine_core_rig.h"
#include "quire/flight_recorder.h"
#include "request/make_request.h"
#include "util/sanitized.h"

namespace quire {
namespace {

// What a run of random operations is made of.
struct Mix {
  const char* name;
  int max_in_flight = 1;
  std::string policy = "fcfs";
  bool caching = true;
  int threshold = 0;
  std::vector<KVCacheSpec> layers = {shadow_spec(kCoreBlockSize)};
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
  EngineConfig config = small_core_config(/*usable_blocks=*/14);
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
  CoreHarness harness(config, std::move(executor));
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
  KVCacheSpec full = shadow_spec(kCoreBlockSize);
  KVCacheSpec window = shadow_spec(kCoreBlockSize, KVCacheKind::kSlidingWindow, 40);
  KVCacheSpec state = shadow_spec(kCoreBlockSize, KVCacheKind::kState);
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

}  // namespace
}  // namespace quire
