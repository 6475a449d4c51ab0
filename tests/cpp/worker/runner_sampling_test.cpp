// What a runner's sampler must do with what a request asks for, on the host and on a device.
#include <algorithm>
#include <cmath>
#include <set>

#include "worker/runner_rig.h"
#include "worker/scheduler_output_builder.h"

namespace quire {
namespace {

class RunnerSamplingTest : public testing::TestWithParam<bool> {
 protected:
  // What three requests get after their prompts, as `change` wants the second one to be sampled.
  template <typename Change>
  ModelRunnerOutput output_with(const Change& change, const GrammarOutput* grammar = nullptr) {
    SchedulerOutputBuilder steps;
    steps.next();
    for (RequestId id : {1, 2, 3})
      steps.add(id, {static_cast<int32_t>(50 * id), 6, 7}, 3, {static_cast<BlockId>(id)});
    change(steps.scheduler_output.scheduled_new_reqs[1]);
    Script script(1);
    script[0].scheduler_output = steps.scheduler_output;
    if (grammar != nullptr) script[0].grammar = *grammar;
    return run({.on_device = GetParam()}, script)[0];
  }
  template <typename Change>
  std::vector<int32_t> tokens_with(const Change& change, const GrammarOutput* grammar = nullptr) {
    return output_with(change, grammar).sampled_token_ids;
  }
  std::vector<int32_t> plain() {
    return tokens_with([](NewRequestData&) {});
  }
};

TEST_P(RunnerSamplingTest, AMaskDecidesForItsRequestAlone) {
  const auto before = plain();
  GrammarOutput grammar;
  for (uint32_t index : {1, 2}) {
    grammar.result_indices.push_back(index);
    for (int32_t word = 0; word < RunnerRig::kVocab / 32; ++word)
      grammar.bitmask.push_back(word == 17 ? static_cast<int32_t>(1U << (index == 2 ? 31 : 4)) : 0);
  }
  const auto after = tokens_with([](NewRequestData&) {}, &grammar);
  EXPECT_EQ(after, (std::vector<int32_t>{before[0], 17 * 32 + 4, 17 * 32 + 31}));
}

TEST_P(RunnerSamplingTest, OnlyAllowedTokensAreChosenAndAGrammarsMaskCountsToo) {
  const auto before = output_with([](NewRequestData& data) { data.sampling_params.edit().logprobs = 1; });
  const auto allow = [](NewRequestData& data) {
    data.sampling_params.edit().allowed_token_ids = {{31, 32, 4095, 31}};
    data.sampling_params.edit().logprobs = 1;
  };
  const auto output = output_with(allow);
  const int32_t chosen = output.sampled_token_ids[1];
  EXPECT_TRUE(chosen == 31 || chosen == 32 || chosen == 4095) << chosen;
  EXPECT_EQ(output.sampled_token_ids[0], before.sampled_token_ids[0]);
  EXPECT_EQ(output.sampled_token_ids[2], before.sampled_token_ids[2]);
  // The likeliest token is still the model's own.
  EXPECT_EQ(output.logprobs.at(0).positions.at(0).at(1), before.logprobs.at(0).positions.at(0).at(1));

  GrammarOutput grammar;
  grammar.result_indices = {1};
  grammar.bitmask.assign(RunnerRig::kVocab / 32, -1);
  for (const int32_t id : {31, 32, 4095}) {
    auto& word = grammar.bitmask[static_cast<size_t>(id) / 32];
    if (id != (chosen == 31 ? 32 : 31))
      word = static_cast<int32_t>(static_cast<uint32_t>(word) & ~(1U << (id % 32)));
  }
  EXPECT_EQ(tokens_with(allow, &grammar)[1], chosen == 31 ? 32 : 31);
}

// Few, and so many that they take rounds of their own on a device.
TEST_P(RunnerSamplingTest, ABadWordDoesNotComeAboutInTheOutput) {
  const auto before = plain();
  for (const size_t num_others : {size_t{0}, size_t{30000}}) {
    const auto after = [&](std::vector<int32_t> output, std::vector<int32_t> word) {
      return tokens_with([&](NewRequestData& data) {
        // The prompt's last tokens become output.
        std::vector<int32_t> prompt = *data.prompt_token_ids;
        prompt.resize(prompt.size() - output.size());
        data.prompt_token_ids = prompt;
        data.output_token_ids = output;
        std::vector<std::vector<int32_t>> words(num_others, {11, 12, 13});
        words.push_back(std::move(word));
        data.bad_words_token_ids = std::move(words);
      });
    };
    const int32_t likeliest = before[1];
    for (const auto& [output, word, is_bad] :
         std::initializer_list<std::tuple<std::vector<int32_t>, std::vector<int32_t>, bool>>{
             {{}, {likeliest}, true},
             {{6, 7}, {6, 7, likeliest}, true},
             {{6, 7}, {7, likeliest}, true},
             {{6, 7}, {6, likeliest}, false},
             {{7}, {6, 7, likeliest}, false},  // begins in the prompt
             {{}, {7, likeliest}, false},
         }) {
      const auto tokens = after(output, word);
      EXPECT_EQ(tokens[1] != likeliest, is_bad) << output.size() << " " << word.size() << " " << num_others;
      EXPECT_EQ(tokens[0], before[0]);
      EXPECT_EQ(tokens[2], before[2]);
    }
  }
}

// Few come from a kernel's list, many from a whole row.
TEST_P(RunnerSamplingTest, AsManyOfTheLikeliestTokensAreReportedAsAreAskedFor) {
  const auto logprobs_of = [&](int32_t count) {
    const auto output =
        output_with([count](NewRequestData& data) { data.sampling_params.edit().logprobs = count; });
    EXPECT_EQ(output.logprobs.size(), 1U);
    EXPECT_EQ(output.logprobs.at(0).result_index, 1U);
    return output.logprobs.at(0).positions.at(0);
  };
  const PositionLogprobs all = logprobs_of(RunnerRig::kVocab);
  ASSERT_EQ(all.size(), 1U + RunnerRig::kVocab);
  double sum = 0;
  std::set<int32_t> ids;
  for (size_t i = 1; i < all.size(); ++i) {
    EXPECT_EQ(all[i].rank, static_cast<int32_t>(i));
    if (i > 1) {
      EXPECT_GE(all[i - 1].logprob, all[i].logprob) << i;
    }
    sum += std::exp(static_cast<double>(all[i].logprob));
    ids.insert(all[i].token_id);
  }
  EXPECT_NEAR(sum, 1, 1e-4);
  EXPECT_EQ(ids.size(), static_cast<size_t>(RunnerRig::kVocab));
  for (const int32_t count : {0, 5, 100, 101, 3000}) {
    const PositionLogprobs some = logprobs_of(count);
    ASSERT_EQ(some.size(), 1U + static_cast<size_t>(count));
    for (size_t i = 0; i < some.size(); ++i) {
      EXPECT_EQ(some[i].token_id, all[i].token_id);
      EXPECT_EQ(some[i].rank, all[i].rank);
      EXPECT_NEAR(some[i].logprob, all[i].logprob, 1e-5);
    }
  }
}

TEST_P(RunnerSamplingTest, LogprobsOfTokensByIdHaveTheirTrueRanks) {
  const auto all =
      output_with([](NewRequestData& data) { data.sampling_params.edit().logprobs = RunnerRig::kVocab; })
          .logprobs.at(0)
          .positions.at(0);
  std::vector<Logprob> by_id(RunnerRig::kVocab);
  for (size_t i = 1; i < all.size(); ++i) by_id[static_cast<size_t>(all[i].token_id)] = all[i];
  // A few, and more than fit the staging memory's first round.
  for (const int32_t count : {1, 3, 9000}) {
    std::vector<int32_t> wanted;
    for (int32_t i = 0; i < count; ++i) wanted.push_back(i * 577 % RunnerRig::kVocab);
    const auto output =
        output_with([&](NewRequestData& data) { data.sampling_params.edit().logprob_token_ids = wanted; });
    ASSERT_EQ(output.logprobs.size(), 1U);
    const PositionLogprobs& position = output.logprobs[0].positions.at(0);
    ASSERT_EQ(position.size(), 1 + wanted.size());
    EXPECT_EQ(position[0].token_id, output.sampled_token_ids[1]);
    for (size_t i = 0; i < wanted.size(); ++i) {
      const Logprob& expected = by_id[static_cast<size_t>(wanted[i])];
      ASSERT_EQ(position[1 + i].token_id, wanted[i]);
      // Logits that differ may have one logprob: then any of its ranks.
      const auto [first, last] =
          std::equal_range(all.begin() + 1, all.end(), expected,
                           [](const Logprob& a, const Logprob& b) { return a.logprob > b.logprob; });
      ASSERT_GE(position[1 + i].rank, first - all.begin());
      ASSERT_LT(position[1 + i].rank, last - all.begin());
      ASSERT_NEAR(position[1 + i].logprob, expected.logprob, 1e-5);
    }
  }
}

TEST_P(RunnerSamplingTest, BiasOfEveryTokenIsApplied) {
  const auto before = plain();
  const auto after = tokens_with([](NewRequestData& data) {
    for (int32_t token = 0; token < RunnerRig::kVocab; ++token)
      data.sampling_params.edit().logit_bias[token] = -100;
    data.sampling_params.edit().logit_bias[RunnerRig::kVocab - 1] = 100;
  });
  EXPECT_EQ(after, (std::vector<int32_t>{before[0], RunnerRig::kVocab - 1, before[2]}));
}

TEST_P(RunnerSamplingTest, StopTokensWaitForMinTokens) {
  const auto before = plain();
  for (const int32_t min_tokens : {0, 1}) {
    const auto after = tokens_with([&](NewRequestData& data) {
      data.eos_token_ids = {2, 0};
      data.sampling_params.edit().min_tokens = min_tokens;
      data.sampling_params.edit().stop_token_ids = {before[1], 2};
      data.sampling_params.edit().logit_bias = {{2, 100.0F}};  // forbidden all the same
    });
    EXPECT_EQ(after[1] == 2, min_tokens == 0);
    EXPECT_EQ(after[1] == 2 || after[1] == before[1], min_tokens == 0);
    EXPECT_EQ(after[0], before[0]);
    EXPECT_EQ(after[2], before[2]);
  }
}

TEST_P(RunnerSamplingTest, ANaNEndsItsRequestAlone) {
  const auto before = plain();
  for (const float temperature : {0.0F, 1.0F}) {
    const ModelRunnerOutput output = output_with([&](NewRequestData& data) {
      data.sampling_params.edit().temperature = temperature;
      data.sampling_params.edit().logprobs = 2;
      // No door lets it in; a model's own would look like this.
      data.sampling_params.edit().logit_bias[77] = NAN;
    });
    ASSERT_EQ(output.errors.size(), 1U);
    EXPECT_EQ(output.errors[0].result_index, 1U);
    EXPECT_NE(output.errors[0].message.find("NaN"), std::string::npos);
    EXPECT_EQ(output.sampled_token_ids, (std::vector<int32_t>{before[0], before[2]}));
    EXPECT_EQ(output.token_ids(output.results[1]).size(), 0U);
  }
}

INSTANTIATE_TEST_SUITE_P(Samplers, RunnerSamplingTest, testing::Values(false, true),
                         [](const auto& info) { return info.param ? "device" : "host"; });

}  // namespace
}  // namespace quire
