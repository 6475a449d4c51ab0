#include "engine/input_processor.h"

#include <gtest/gtest.h>

#include "engine/field_samples.h"
#include "quire/error.h"
#include "util/error_of.h"

namespace quire {
namespace {

class InputProcessorTest : public testing::Test {
 protected:
  std::string complaint(std::string prompt, SamplingParams params = {}) {
    EngineRequest request;
    request.prompt = std::move(prompt);
    request.sampling_params = std::move(params);
    return error_of([&] { processor_.process(request); });
  }

  static ModelInfo model(const Tokenizer& tokenizer) {
    ModelInfo info;
    info.vocab_size = tokenizer.vocab_size();
    info.max_model_len = 64;
    return info;
  }

  std::shared_ptr<const Tokenizer> tokenizer_ = Tokenizer::load(QUIRE_DEMO_MODEL);
  InputProcessor processor_{model(*tokenizer_), {}, tokenizer_, EngineConfig{}};
};

TEST_F(InputProcessorTest, TextBeyondAContextOfTheLongestTokensIsNotEncoded) {
  const size_t limit = 64 * tokenizer_->max_token_bytes();
  const std::string tokens_complaint = " tokens; with max_model_len 64 it may have at most 63";
  const std::string at_the_limit = complaint(std::string(limit, 'a'));
  EXPECT_NE(at_the_limit.find(tokens_complaint), std::string::npos) << at_the_limit;
  EXPECT_EQ(complaint(std::string(limit + 1, 'a')),
            "prompt has " + std::to_string(limit + 1) +
                " bytes; with max_model_len 64 and tokens of at most " +
                std::to_string(tokenizer_->max_token_bytes()) + " bytes it may have at most " +
                std::to_string(limit));
  // Not even looked at: it is no UTF-8.
  EXPECT_NE(complaint(std::string(size_t{64} << 20, '\xff')).find("67108864 bytes"), std::string::npos);
}

TEST_F(InputProcessorTest, TheLongestTokensMayFillTheContext) {
  std::string longest;
  for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
    const std::string token = tokenizer_->decode(std::vector<int32_t>{id});
    if (token.size() > longest.size() && tokenizer_->encode(token + token, false).size() == 2)
      longest = token;
  }
  ASSERT_GT(longest.size(), 6U);
  std::string prompt;
  for (int i = 0; i < 63; ++i) prompt += longest;
  EXPECT_EQ(complaint(prompt), "");
}

TEST_F(InputProcessorTest, WhatOneRequestMayAskForHasLimits) {
  EngineConfig config;
  config.max_logprobs = 5;
  config.max_logit_bias = 2;
  config.max_stop_token_ids = 3;
  config.max_stop_bytes = 6;
  config.max_answer_logprobs = 60;
  const auto check = [&](const std::string& expected, auto change) {
    EngineRequest request;
    request.prompt_token_ids = {1};
    request.sampling_params.max_tokens = 10;
    change(request.sampling_params);
    InputProcessor processor(model(*tokenizer_), {}, tokenizer_, config);
    const std::string text = error_of([&] {
      EXPECT_EQ(processor.process(request).at(0).sampling_params->stop, std::vector<std::string>{})
          << "the engine core has no text";
    });
    EXPECT_EQ(text, expected);
  };
  check("", [](SamplingParams& p) { p.logprobs = 5; });
  check("logprobs is 6; the engine's max_logprobs allows at most 5",
        [](SamplingParams& p) { p.logprobs = 6; });
  check("", [](SamplingParams& p) { p.logit_bias = {{1, 1.0F}, {2, 1.0F}}; });
  check("logit_bias has this many token ids: 3; the engine's max_logit_bias allows at most 2",
        [](SamplingParams& p) { p.logit_bias = {{1, 1.0F}, {2, 1.0F}, {3, 1.0F}}; });
  check("", [](SamplingParams& p) { p.stop_token_ids = {1, 2, 3}; });
  check("stop_token_ids has this many: 4; the engine's max_stop_token_ids allows at most 3",
        [](SamplingParams& p) { p.stop_token_ids = {1, 2, 3, 4}; });
  check("", [](SamplingParams& p) { p.stop = {"abc", "def"}; });
  check("stop has this many bytes of strings: 7; the engine's max_stop_bytes allows at most 6",
        [](SamplingParams& p) { p.stop = {"abc", "defg"}; });
  const auto logprobs = [](SamplingParams& p) { p.logprobs = 2, p.n = 2; };
  check("", logprobs);
  check(
      "n 2, logprobs 2 and max_tokens 11 make 66 log-probabilities; the engine's max_answer_logprobs allows "
      "at most 60: ask for less of one of them",
      [&](SamplingParams& p) { logprobs(p), p.max_tokens = 11; });
}

TEST_F(InputProcessorTest, EveryFieldOutOfItsRangeIsRefusedByName) {
  size_t num_refused = 0;
  for_each_request_field([&](const auto& field, auto part_of) {
    EngineRequest plain;
    for (const auto& value : outside(field.range, part_of(plain).*field.member)) {
      ++num_refused;
      EngineRequest request;
      request.prompt_token_ids = {1};
      part_of(request).*field.member = value;
      const std::string error = error_of([&] { processor_.process(request); });
      EXPECT_TRUE(error.starts_with(field.name)) << field.name << ": " << error;
    }
  });
  EXPECT_GT(num_refused, 30U);
}

TEST_F(InputProcessorTest, CompletionsOfAPromptShareItAndItsParameters) {
  EngineRequest request;
  request.prompt_token_ids = {1, 2, 3};
  const int32_t* const prompt = request.prompt_token_ids.data();
  request.sampling_params.n = 3;
  const auto messages = processor_.process(request);
  ASSERT_EQ(messages.size(), 3U);
  for (const EngineCoreRequest& message : messages) {
    EXPECT_EQ(message.prompt_token_ids->data(), prompt);
    EXPECT_EQ(&*message.sampling_params, &*messages[0].sampling_params);
  }
}

TEST_F(InputProcessorTest, SeedsOfRequestsThatBringNoneRepeatWithTheEnginesSeed) {
  const auto seeds = [&](std::optional<uint64_t> seed) {
    EngineConfig config;
    config.seed = seed;
    InputProcessor processor(model(*tokenizer_), {}, tokenizer_, config);
    EngineRequest request;
    request.prompt_token_ids = {1};
    request.sampling_params.n = 2;
    std::vector<uint64_t> result;
    for (const auto& message : processor.process(request)) result.push_back(message.seed);
    return result;
  };
  EXPECT_EQ(seeds(0), seeds(0));
  EXPECT_EQ(seeds(5), seeds(5));
  EXPECT_NE(seeds(0), seeds(5));
  EXPECT_NE(seeds({}), seeds({}));
  EXPECT_NE(seeds(0).at(0), seeds(0).at(1));
}

}  // namespace
}  // namespace quire
