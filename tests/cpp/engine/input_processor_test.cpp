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
  InputProcessor processor_{model(*tokenizer_), {}, tokenizer_, nullptr, EngineConfig{}};
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

TEST_F(InputProcessorTest, ASearchIsRefusedWhereItCannotBeWhatItSays) {
  SamplingParams params;
  params.beam_width = 4;
  EXPECT_EQ(complaint("a", params), "");
  params.stop_token_ids.resize(100);
  for (int32_t i = 0; i < 100; ++i) params.stop_token_ids[static_cast<size_t>(i)] = i;
  params.beam_width = 50;
  EXPECT_EQ(complaint("a", params),
            "beam_width must be at most 20 for a vocabulary of 4096 with 100 stop tokens, got 50");

  EngineConfig config;
  config.kv_connector = "some_connector";
  InputProcessor with_connector(model(*tokenizer_), {}, tokenizer_, nullptr, config);
  EngineRequest request;
  request.prompt = "a";
  request.sampling_params.beam_width = 2;
  const std::string error = error_of([&] { with_connector.process(request); });
  EXPECT_EQ(error.find("beam_width is 2, but the engine has a kv_connector"), 0U) << error;
}

TEST_F(InputProcessorTest, WhatOneRequestMayAskForHasLimits) {
  EngineConfig config;
  config.max_logprobs = 5;
  config.max_logprob_token_ids = 2;
  config.max_logit_bias = 2;
  config.max_stop_token_ids = 3;
  config.max_stop_bytes = 6;
  config.max_bad_words_bytes = 5;
  config.max_answer_logprobs = 60;
  const auto check = [&](const std::string& expected, auto change) {
    EngineRequest request;
    request.prompt_token_ids = {1};
    request.sampling_params.max_tokens = 10;
    change(request.sampling_params);
    InputProcessor processor(model(*tokenizer_), {}, tokenizer_, nullptr, config);
    const std::string text = error_of([&] {
      EXPECT_EQ(processor.process(request).at(0).sampling_params->stop, std::vector<std::string>{})
          << "the engine core has no text";
    });
    EXPECT_EQ(text, expected);
  };
  check("", [](SamplingParams& p) { p.logprobs = 5; });
  check("logprobs is 6; the engine's max_logprobs allows at most 5",
        [](SamplingParams& p) { p.logprobs = 6; });
  check("logprobs is -1, which is the whole vocabulary of 4096; the engine's max_logprobs allows at most 5",
        [](SamplingParams& p) { p.logprobs = -1; });
  check("", [](SamplingParams& p) { p.logprob_token_ids = {1, 2}; });
  check("logprob_token_ids has this many: 3; the engine's max_logprob_token_ids allows at most 2",
        [](SamplingParams& p) { p.logprob_token_ids = {1, 2, 3}; });
  check("", [](SamplingParams& p) { p.logprob_token_ids = {1, 2}, p.logprobs = 2; });
  check("logprobs must be none, or 2 as the number of logprob_token_ids is, got 1",
        [](SamplingParams& p) { p.logprob_token_ids = {1, 2}, p.logprobs = 1; });
  check("", [](SamplingParams& p) { p.logit_bias = {{1, 1.0F}, {2, 1.0F}}; });
  check("logit_bias has this many token ids: 3; the engine's max_logit_bias allows at most 2",
        [](SamplingParams& p) { p.logit_bias = {{1, 1.0F}, {2, 1.0F}, {3, 1.0F}}; });
  check("", [](SamplingParams& p) { p.stop_token_ids = {1, 2, 3}; });
  check("stop_token_ids has this many: 4; the engine's max_stop_token_ids allows at most 3",
        [](SamplingParams& p) { p.stop_token_ids = {1, 2, 3, 4}; });
  check("", [](SamplingParams& p) { p.stop = {"abc", "def"}; });
  check("stop has this many bytes of strings: 7; the engine's max_stop_bytes allows at most 6",
        [](SamplingParams& p) { p.stop = {"abc", "defg"}; });
  check("", [](SamplingParams& p) { p.bad_words = {"abc", "de"}; });
  check("bad_words has this many bytes of strings: 6; the engine's max_bad_words_bytes allows at most 5",
        [](SamplingParams& p) { p.bad_words = {"abc", "def"}; });
  const auto logprobs = [](SamplingParams& p) { p.logprobs = 2, p.n = 2; };
  check("", logprobs);
  check(
      "n 2, logprobs 2 and max_tokens 11 make 66 log-probabilities; the engine's max_answer_logprobs allows "
      "at most 60: ask for less of one of them",
      [&](SamplingParams& p) { logprobs(p), p.max_tokens = 11; });
  check(
      "n 2, logprob_token_ids 2 and max_tokens 11 make 66 log-probabilities; the engine's "
      "max_answer_logprobs "
      "allows at most 60: ask for less of one of them",
      [](SamplingParams& p) { p.logprob_token_ids = {1, 2}, p.n = 2, p.max_tokens = 11; });
}

TEST_F(InputProcessorTest, AllLogprobsAreAsManyAsTheVocabularyHas) {
  EngineConfig config;
  config.max_logprobs = -1;
  InputProcessor processor(model(*tokenizer_), {}, tokenizer_, nullptr, config);
  for (const int32_t given : {-1, 4096, 100000}) {
    EngineRequest request;
    request.prompt_token_ids = {1};
    request.sampling_params.logprobs = given;
    if (given > 4096) {
      EXPECT_EQ(error_of([&] { processor.process(request); }),
                "logprobs is 100000; the engine's max_logprobs allows at most 4096");
    } else {
      EXPECT_EQ(processor.process(request).at(0).sampling_params->logprobs, 4096);
    }
  }
}

TEST_F(InputProcessorTest, PromptLogprobsAreOneCompletionsBusinessAndHaveLimits) {
  EngineConfig config;
  config.max_answer_logprobs = 30;
  InputProcessor processor(model(*tokenizer_), {}, tokenizer_, nullptr, config);
  const auto process = [&](int32_t count, size_t length) {
    EngineRequest request;
    request.prompt_token_ids.assign(length, 1);
    request.sampling_params.prompt_logprobs = count;
    request.sampling_params.n = 3;
    return processor.process(request);
  };
  const auto messages = process(4, 7);
  EXPECT_EQ(messages.at(0).num_prompt_logprobs, 4);
  EXPECT_EQ(messages.at(1).num_prompt_logprobs, std::nullopt);
  EXPECT_EQ(messages.at(0).sampling_params->prompt_logprobs, std::nullopt);
  EXPECT_EQ(error_of([&] { process(4, 8); }),
            "prompt_logprobs 4 and a prompt of 8 tokens make 35 log-probabilities; the engine's "
            "max_answer_logprobs allows at most 30: ask for fewer, or give a shorter prompt");
  EXPECT_EQ(error_of([&] { process(21, 2); }),
            "prompt_logprobs is 21; the engine's max_logprobs allows at most 20");
  EXPECT_EQ(
      error_of([&] { process(-1, 2); }),
      "prompt_logprobs is -1, which is the whole vocabulary of 4096; the engine's max_logprobs allows at "
      "most 20");
}

TEST_F(InputProcessorTest, ALongPromptIsCutToItsLastTokens) {
  const auto prompt_of = [&](int32_t keep, std::vector<int32_t> ids) {
    EngineRequest request;
    request.prompt_token_ids = std::move(ids);
    request.sampling_params.truncate_prompt_tokens = keep;
    return *processor_.process(request).at(0).prompt_token_ids;
  };
  EXPECT_EQ(prompt_of(2, {1, 2, 3}), (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(prompt_of(3, {1, 2, 3}), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(prompt_of(9, {1, 2, 3}), (std::vector<int32_t>{1, 2, 3}));
  std::vector<int32_t> longer(100);
  for (int32_t i = 0; i < 100; ++i) longer[static_cast<size_t>(i)] = i;
  EXPECT_EQ(prompt_of(-1, longer), std::vector<int32_t>(longer.end() - 63, longer.end()));
  EXPECT_EQ(error_of([&] { prompt_of(64, longer); }),
            "prompt has 64 tokens; with max_model_len 64 it may have at most 63");
  EXPECT_EQ(error_of([&] { prompt_of(65, longer); }),
            "truncate_prompt_tokens is 65; max_model_len is 64: give at most 63, or -1 for as many as fit");
  EXPECT_EQ(error_of([&] { prompt_of(0, longer); }),
            "truncate_prompt_tokens must be at least 1, or -1 for as many as fit, got 0");
}

TEST_F(InputProcessorTest, BadWordsAreTokensWithABlankAndWithout) {
  const auto tokens_of = [&](std::vector<std::string> words) {
    EngineRequest request;
    request.prompt_token_ids = {1};
    request.sampling_params.bad_words = std::move(words);
    const auto messages = processor_.process(request);
    EXPECT_TRUE(messages.at(0).sampling_params->bad_words.empty()) << "the engine core has no text";
    return *messages.at(0).bad_words_token_ids;
  };
  const auto ids = [&](const char* text) { return tokenizer_->encode(text, /*add_special_tokens=*/false); };
  // One token each, at the beginning of a text and within it.
  ASSERT_EQ(ids("the").size(), 1U);
  ASSERT_EQ(ids(" the").size(), 1U);
  const std::vector<std::vector<int32_t>> expected = {ids("the"), ids(" the")};
  EXPECT_EQ(tokens_of({"the"}), expected);
  EXPECT_EQ(tokens_of({"  \tthe"}), expected) << "blanks before it do not count";
  // A blank that is a token of its own makes the sequence longer: the bare one is what it ends with.
  const auto number = tokens_of({"7"});
  EXPECT_EQ(number.size(), ids(" 7").size() == ids("7").size() ? 2U : 1U);
  EXPECT_EQ(number[0], ids("7"));
  EXPECT_TRUE(tokens_of({}).empty());
}

TEST_F(InputProcessorTest, BadWordsThatCannotBeForbiddenAreRefused) {
  const auto refused = [&](std::vector<std::string> words) {
    SamplingParams params;
    params.bad_words = std::move(words);
    return complaint("hello", params);
  };
  EXPECT_EQ(refused({"ok", " \n"}),
            "bad_words[1] is nothing but blanks; give text, or forbid tokens by logit_bias");
  EXPECT_EQ(refused({""}), "bad_words holds an empty string; give non-empty strings");
  std::string text;
  for (int i = 0; i < 200; ++i) text += "x1";
  const auto num_tokens = tokenizer_->encode(text, false).size();
  EXPECT_EQ(refused({text}), "bad_words[0] is " + std::to_string(num_tokens) +
                                 " tokens long; a bad word may have at most 128");
  InputProcessor without_text(model(*tokenizer_), {}, nullptr, nullptr, EngineConfig{});
  EngineRequest request;
  request.prompt_token_ids = {1};
  request.sampling_params.bad_words = {"the"};
  EXPECT_EQ(error_of([&] { without_text.process(request); }),
            "bad_words holds strings, but skip_tokenizer_init is set; give logit_bias");
}

TEST_F(InputProcessorTest, AllowedTokensOfWhichNoneCanComeAreRefused) {
  const int32_t the = tokenizer_->encode("the", false).at(0);
  const auto refused = [&](std::vector<int32_t> allowed, auto change) {
    SamplingParams params;
    params.allowed_token_ids = std::move(allowed);
    change(params);
    InputProcessor processor(model(*tokenizer_), {0, 2}, tokenizer_, nullptr, EngineConfig{});
    EngineRequest request;
    request.prompt_token_ids = {1};
    request.sampling_params = params;
    return error_of([&] { processor.process(request); });
  };
  EXPECT_EQ(refused({5}, [](SamplingParams&) {}), "");
  EXPECT_EQ(refused({}, [](SamplingParams&) {}),
            "allowed_token_ids is an empty list; give at least one token id, or none for all");
  const std::string too_many = refused(std::vector<int32_t>(5000, 7), [](SamplingParams&) {});
  EXPECT_EQ(too_many, "allowed_token_ids has 5000 ids; the vocabulary has 4096: give each once");
  const auto late = [](SamplingParams& params) { params.min_tokens = 2, params.stop_token_ids = {9}; };
  EXPECT_EQ(refused({0, 9, 5}, late), "");
  EXPECT_EQ(
      refused({0, 9, 2}, late),
      "allowed_token_ids holds nothing but tokens that end the answer, which min_tokens 2 forbids at first; "
      "allow another token, or leave out one of them");
  EXPECT_EQ(refused({0, 9}, [&](SamplingParams& params) { late(params), params.ignore_eos = true; }), "");
  const auto bad = [](SamplingParams& params) { params.bad_words = {"the"}; };
  EXPECT_EQ(refused({the, 5}, bad), "");
  EXPECT_EQ(refused({the}, bad),
            "allowed_token_ids holds nothing but tokens that bad_words forbids; allow another token");
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
    InputProcessor processor(model(*tokenizer_), {}, tokenizer_, nullptr, config);
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
