// Beam search: the algorithm against every sequence there is, and searches in an engine.
#include "engine/beam_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <random>
#include <set>

#include "quire/engine.h"
#include "quire/flight_recorder.h"

namespace quire {
namespace {

// A language of `size` tokens, whose next token depends on the last two.
class SmallLanguage {
 public:
  SmallLanguage(int32_t size, uint32_t seed) : size_(size), random_(seed) {}

  // The likeliest first.
  const std::vector<Logprob>& after(const std::vector<int32_t>& tokens) {
    const size_t keep = std::min<size_t>(tokens.size(), 2);
    const std::vector<int32_t> last(tokens.end() - static_cast<std::ptrdiff_t>(keep), tokens.end());
    auto [entry, is_new] = next_.try_emplace(last);
    if (is_new) {
      std::normal_distribution<double> logit(0.0, 2.0);
      std::vector<double> logits;
      double sum = 0.0;
      for (int32_t id = 0; id < size_; ++id) sum += std::exp(logits.emplace_back(logit(random_)));
      for (int32_t id = 0; id < size_; ++id) {
        const double logprob = logits[static_cast<size_t>(id)] - std::log(sum);
        entry->second.push_back({id, static_cast<float>(logprob), 0});
      }
      std::ranges::sort(entry->second,
                        [](const Logprob& a, const Logprob& b) { return a.logprob > b.logprob; });
    }
    return entry->second;
  }

 private:
  int32_t size_;
  std::mt19937 random_;
  std::map<std::vector<int32_t>, std::vector<Logprob>> next_;
};

std::vector<BeamSearch::Sequence> search(const SamplingParams& params, const std::vector<int32_t>& stops,
                                         SmallLanguage& language) {
  BeamSearch beams(params, stops);
  std::vector<std::vector<int32_t>> texts(1);
  while (true) {
    std::vector<std::span<const Logprob>> candidates;
    for (const auto& text : texts) {
      const std::span<const Logprob> all = language.after(text);
      candidates.push_back(all.first(std::min(all.size(), static_cast<size_t>(beams.num_candidates()))));
    }
    if (!beams.advance(candidates)) return beams.best();
    std::vector<std::vector<int32_t>> next;
    for (const BeamSearch::Beam& beam : beams.beams()) {
      next.push_back(texts.at(beam.parent));
      next.back().push_back(beam.token_id);
    }
    texts = next;
  }
}

double logprob_of(const std::vector<int32_t>& tokens, SmallLanguage& language) {
  double sum = 0.0;
  std::vector<int32_t> before;
  for (int32_t id : tokens) {
    const auto& all = language.after(before);
    sum += static_cast<double>(std::ranges::find(all, id, &Logprob::token_id)->logprob);
    before.push_back(id);
  }
  return sum;
}

// All texts that end: with token 0, or at the longest.
void all_texts(std::vector<int32_t>& text, int32_t size, size_t longest,
               std::vector<std::vector<int32_t>>& out) {
  for (int32_t id = 0; id < size; ++id) {
    text.push_back(id);
    if (id == 0 || text.size() == longest) {
      out.push_back(text);
    } else {
      all_texts(text, size, longest, out);
    }
    text.pop_back();
  }
}

TEST(BeamSearchTest, AsManyBeamsAsTextsFindTheBestOfAll) {
  constexpr int32_t kTokens = 4;
  for (uint32_t seed = 0; seed < 40; ++seed) {
    for (const float length_penalty : {0.0F, 1.0F, 2.0F}) {
      SmallLanguage language(kTokens, seed);
      SamplingParams params;
      params.beam_width = 100;
      params.n = 5;
      params.max_tokens = 4;
      params.length_penalty = length_penalty;
      params.early_stopping = EarlyStopping::kNever;
      const auto found = search(params, {0}, language);
      std::vector<std::vector<int32_t>> texts;
      std::vector<int32_t> text;
      all_texts(text, kTokens, 4, texts);
      const auto score = [&](const std::vector<int32_t>& tokens) {
        return logprob_of(tokens, language) /
               std::pow(static_cast<double>(tokens.size()), static_cast<double>(length_penalty));
      };
      std::ranges::sort(texts, [&](const auto& a, const auto& b) { return score(a) > score(b); });
      ASSERT_EQ(found.size(), 5U);
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_EQ(found[i].token_ids, texts[i]) << "seed " << seed << ", place " << i;
        EXPECT_EQ(found[i].finish_reason, texts[i].back() == 0 ? FinishReason::kStop : FinishReason::kLength);
      }
    }
  }
}

TEST(BeamSearchTest, NoStopComesBeforeMinTokens) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    SmallLanguage language(6, seed);
    SamplingParams params;
    params.beam_width = 4;
    params.n = 4;
    params.max_tokens = 8;
    params.min_tokens = 5;
    for (const auto& sequence : search(params, {0, 1}, language)) {
      for (size_t i = 0; i + 1 < 5; ++i) EXPECT_GT(sequence.token_ids.at(i), 1);
      EXPECT_GE(sequence.token_ids.size(), 5U);
    }
  }
}

TEST(BeamSearchTest, LogitsThatAreNoNumbersEndIt) {
  SamplingParams params;
  params.beam_width = 2;
  params.max_tokens = 4;
  BeamSearch beams(params, {});
  const std::vector<Logprob> nothing(4, {1, std::numeric_limits<float>::quiet_NaN(), 1});
  const std::vector<std::span<const Logprob>> candidates = {nothing};
  EXPECT_FALSE(beams.advance(candidates));
  EXPECT_TRUE(beams.best().empty());
}

// Whether two steps may be in flight.
class BeamSearchEngineTest : public testing::TestWithParam<bool> {
 protected:
  static EngineConfig config() {
    EngineConfig config;
    config.model = QUIRE_DEMO_MODEL;
    config.dtype = "float32";
    config.max_model_len = 256;
    config.num_threads = 1;
    config.kv_cache_memory_bytes = 16 << 20;
    config.async_scheduling = GetParam();
    return config;
  }
  static EngineRequest request(const std::string& prompt, int32_t beam_width, int32_t max_tokens = 24) {
    EngineRequest result;
    result.prompt = prompt;
    result.sampling_params.beam_width = result.sampling_params.n = beam_width;
    result.sampling_params.max_tokens = max_tokens;
    return result;
  }
  static std::vector<std::vector<int32_t>> tokens_of(const RequestOutput& output) {
    std::vector<std::vector<int32_t>> tokens;
    for (const CompletionOutput& completion : output.outputs) {
      EXPECT_EQ(completion.error, "");
      tokens.push_back(completion.token_ids);
    }
    return tokens;
  }
};

TEST_P(BeamSearchEngineTest, BeamsShareTheirPrompt) {
  EngineConfig with_room = config();
  with_room.max_model_len = 1024;
  std::string prompt;
  for (int i = 0; i < 150; ++i) prompt += "Once upon a time ";
  Engine engine(with_room);
  const auto before = engine.stats();
  const auto outputs = engine.generate({request(prompt, 8)});
  const auto after = engine.stats();
  const auto num_prompt_tokens = static_cast<uint64_t>(outputs[0].prompt_token_ids->size());
  const auto num_steps = static_cast<uint64_t>(outputs[0].outputs[0].token_ids.size());
  // The prompt once, and then one token for each beam and step.
  EXPECT_GT(num_prompt_tokens, 500U);
  EXPECT_LE(after.num_scheduled_tokens - before.num_scheduled_tokens, num_prompt_tokens + 8 * 24);
  EXPECT_GE(after.num_scheduled_tokens - before.num_scheduled_tokens,
            num_prompt_tokens + 8 * (num_steps - 1));
  EXPECT_EQ(after.num_free_blocks, after.num_total_blocks);
}

TEST_P(BeamSearchEngineTest, BeamsThatArePreemptedFindTheSame) {
  const auto found = [&](int32_t num_blocks) {
    EngineConfig small = config();
    small.kv_cache_memory_bytes = 0;
    small.num_gpu_blocks_override = num_blocks;
    small.max_num_seqs = 6;
    Engine engine(small);
    std::vector<EngineRequest> requests;
    for (const char* prompt : {"Once upon a time", "The baker said", "Who are you?"})
      requests.push_back(request(prompt, 5, 60));
    EngineRequest free = request("There was", 1, 100);
    free.sampling_params.temperature = 0;
    requests.insert(requests.begin(), 3, free);
    std::vector<std::vector<std::vector<int32_t>>> all;
    for (const RequestOutput& output : engine.generate(requests)) all.push_back(tokens_of(output));
    const auto stats = engine.stats();
    EXPECT_EQ(stats.num_free_blocks, stats.num_total_blocks);
    return all;
  };
  EXPECT_EQ(found(20), found(200));
}

TEST_P(BeamSearchEngineTest, FewSeatsAreEnough) {
  EngineConfig narrow = config();
  narrow.max_num_seqs = 2;
  narrow.max_num_batched_tokens = 32;
  Engine wide_engine(config());
  Engine narrow_engine(narrow);
  const std::vector<EngineRequest> requests = {request("Once upon a time", 7), request("The baker", 3)};
  const auto wide = wide_engine.generate(requests);
  const auto found = narrow_engine.generate(requests);
  for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(tokens_of(found[i]), tokens_of(wide[i]));
}

TEST_P(BeamSearchEngineTest, AnAbortedSearchLeavesNothing) {
  EngineConfig with_room = config();
  LLMEngine engine(with_room);
  for (int num_steps = 0; num_steps < 8; ++num_steps) {
    EngineRequest asked = request("Once upon a time", 6, 200);
    asked.sampling_params.ignore_eos = true;
    const std::string id = engine.add_request(asked);
    engine.add_request(request("The baker said", 1, 4));
    for (int i = 0; i < num_steps; ++i) engine.step();
    EXPECT_TRUE(engine.abort_request(id));
    while (engine.has_unfinished_requests()) engine.step();
  }
  const auto stats = engine.stats();
  EXPECT_EQ(stats.num_running_reqs + stats.num_waiting_reqs, 0);
  EXPECT_EQ(stats.num_unknown_aborts, 0U);
  EXPECT_TRUE(engine.reset_prefix_cache());
}

TEST_P(BeamSearchEngineTest, ADeadlineEndsASearchWithTheBestSoFar) {
  Engine engine(config());
  EngineRequest asked = request("Once upon a time", 4, 200);
  asked.sampling_params.ignore_eos = true;
  asked.deadline_ms = 30;
  const auto outputs = engine.generate({asked});
  for (const CompletionOutput& completion : outputs[0].outputs) {
    EXPECT_EQ(completion.finish_reason, FinishReason::kAbort);
    EXPECT_NE(completion.error.find("deadline_ms 30 has passed"), std::string::npos) << completion.error;
    EXPECT_LT(completion.token_ids.size(), 200U);
  }
  EXPECT_EQ(tokens_of(engine.generate({request("Once upon a time", 4)})[0]).size(), 4U);
}

TEST_P(BeamSearchEngineTest, ARecordingOfItReplays) {
  EngineConfig recorded = config();
  recorded.flight_recorder_bytes = 1 << 20;
  recorded.num_gpu_blocks_override = 24;
  recorded.kv_cache_memory_bytes = 0;
  recorded.max_num_seqs = 6;
  const std::string path = (std::filesystem::temp_directory_path() / "beam_search_test.rec").string();
  {
    Engine engine(recorded);
    std::vector<EngineRequest> requests;
    for (int i = 0; i < 4; ++i)
      requests.push_back(request(i % 2 == 0 ? "Once upon a time" : "The baker said", 4 + i, 50));
    engine.generate(requests);
    engine.dump_flight_recorder(path);
  }
  const ReplayReport report = replay_recording(path);
  EXPECT_GT(report.num_steps, 50U);
  EXPECT_EQ(report.divergence, "");
  std::filesystem::remove(path);
}

INSTANTIATE_TEST_SUITE_P(StepsInFlight, BeamSearchEngineTest, testing::Bool());

}  // namespace
}  // namespace quire
