// Answers under a grammar, from the engine's door to the text; and that nobody else notices.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <future>
#include <regex>
#include <thread>

#include "grammar/grammar.h"
#include "quire/engine.h"
#include "quire/flight_recorder.h"

namespace quire {
namespace {

// Whether two steps may be in flight: masks then wait for the step before.
class StructuredOutputTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!has_grammar_compiler()) GTEST_SKIP() << "built without a grammar library";
  }
  static EngineConfig config() {
    EngineConfig config;
    config.model = QUIRE_DEMO_MODEL;
    config.max_model_len = 256;
    config.num_threads = 1;
    config.kv_cache_memory_bytes = 16 << 20;
    config.async_scheduling = GetParam();
    return config;
  }
  static EngineRequest request(const std::string& prompt, int32_t max_tokens = 40) {
    EngineRequest result;
    result.prompt = prompt;
    result.sampling_params.temperature = 0;
    result.sampling_params.max_tokens = max_tokens;
    return result;
  }
  static EngineRequest with_regex(const std::string& regex, int32_t max_tokens = 40) {
    EngineRequest result = request("Once upon a time", max_tokens);
    result.sampling_params.structured_outputs.emplace().regex = regex;
    return result;
  }
  // Its grammar would take longer than one may.
  static EngineRequest takes_long() {
    EngineRequest result = with_regex("");
    result.sampling_params.structured_outputs->regex.reset();
    auto& choice = result.sampling_params.structured_outputs->choice.emplace();
    for (int i = 0; i < 20000; ++i)
      choice.push_back("alternative number " + std::to_string(i * 7919) + " of many");
    return result;
  }
  static std::string complaint(Engine& engine, const EngineRequest& bad) {
    try {
      engine.generate({bad});
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  }
};

TEST_P(StructuredOutputTest, TheAnswerFitsAndEnds) {
  Engine engine(config());
  const std::string regex = "[A-Z][a-z]{2,5}, [0-9]{4}";
  for (const float temperature : {0.0F, 2.0F}) {
    EngineRequest asked = with_regex(regex);
    asked.sampling_params.temperature = temperature;
    asked.sampling_params.n = temperature > 0 ? 8 : 1;
    asked.sampling_params.seed = 7;
    const auto outputs = engine.generate({asked});
    for (const CompletionOutput& output : outputs[0].outputs) {
      EXPECT_TRUE(std::regex_match(output.text, std::regex(regex))) << output.text;
      EXPECT_EQ(output.finish_reason, FinishReason::kStop) << output.error;
    }
  }
}

TEST_P(StructuredOutputTest, FreeRequestsBesideItAreAsTheyWere) {
  Engine engine(config());
  std::vector<EngineRequest> free;
  for (const char* prompt : {"Once upon a time", "The baker said", "Who are you?"})
    free.push_back(request(prompt));
  const auto alone = engine.generate(free);
  std::vector<EngineRequest> mixed;
  for (const EngineRequest& one : free) {
    mixed.push_back(with_regex("([a-z]+ ){12}"));
    mixed.push_back(one);
  }
  const auto outputs = engine.generate(mixed);
  for (size_t i = 0; i < free.size(); ++i) {
    EXPECT_EQ(outputs[2 * i + 1].outputs[0].token_ids, alone[i].outputs[0].token_ids);
    EXPECT_TRUE(std::regex_match(outputs[2 * i].outputs[0].text, std::regex("([a-z]+ ){0,12}[a-z]*")));
  }
}

TEST_P(StructuredOutputTest, AConstrainedRequestIsPreemptedAndGoesOn) {
  const std::string regex = "([a-z]{1,8} ){60}end";
  const auto answers = [&](int32_t num_blocks) {
    EngineConfig small = config();
    small.kv_cache_memory_bytes = 0;
    small.num_gpu_blocks_override = num_blocks;
    small.max_num_seqs = 4;
    Engine engine(small);
    const auto outputs = engine.generate(std::vector<EngineRequest>(4, with_regex(regex, 200)));
    EXPECT_EQ(engine.stats().num_preemptions > 0, num_blocks < 20);
    std::vector<std::string> texts;
    for (const RequestOutput& output : outputs) texts.push_back(output.outputs[0].text);
    return texts;
  };
  const auto texts = answers(18);
  EXPECT_EQ(texts, answers(80));
  EXPECT_TRUE(std::regex_match(texts[0], std::regex("([a-z]{1,8} ){0,60}.*"))) << texts[0];
}

TEST_P(StructuredOutputTest, AGrammarThatCannotGoOnFailsItsRequestAlone) {
  Engine engine(config());
  EngineRequest stuck = with_regex("");
  stuck.sampling_params.structured_outputs->regex.reset();
  stuck.sampling_params.structured_outputs->grammar = "root ::= \"ab\" nothing\nnothing ::= nothing";
  const auto outputs = engine.generate({stuck, with_regex("[0-9]{3}")});
  EXPECT_EQ(outputs[0].outputs[0].finish_reason, FinishReason::kError);
  EXPECT_NE(outputs[0].outputs[0].error.find("no token of the vocabulary can follow"), std::string::npos)
      << outputs[0].outputs[0].error;
  EXPECT_EQ(outputs[1].outputs[0].text.size(), 3U);
}

TEST_P(StructuredOutputTest, AGrammarThatTakesTooLongFailsItsRequestAlone) {
  Engine engine(config());
  const EngineRequest large = takes_long();
  const auto outputs = engine.generate({large, with_regex("[0-9]{3}"), large});
  for (const size_t i : {0, 2}) {
    EXPECT_EQ(outputs[i].outputs[0].finish_reason, FinishReason::kError);
    EXPECT_NE(outputs[i].outputs[0].error.find("takes longer than 2 s"), std::string::npos)
        << outputs[i].outputs[0].error;
  }
  EXPECT_EQ(outputs[1].outputs[0].text.size(), 3U);
}

// What is being compiled does not hold up its end.
TEST_P(StructuredOutputTest, AnEngineEndsWhileAGrammarIsCompiled) {
  Engine engine(config());
  engine.add_request(takes_long(), [](RequestOutput&&) {});
}

TEST_P(StructuredOutputTest, ARequestIsAbortedWhileItsGrammarIsCompiled) {
  Engine engine(config());
  std::promise<FinishReason> ended;
  EngineRequest large = takes_long();
  large.request_id = "large";
  engine.add_request(large, [&](RequestOutput&& output) {
    if (output.finished) ended.set_value(output.outputs[0].finish_reason);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_TRUE(engine.abort_request("large"));
  EXPECT_EQ(ended.get_future().get(), FinishReason::kAbort);
  EXPECT_EQ(engine.generate({with_regex("[0-9]{3}")})[0].outputs[0].text.size(), 3U);
}

#ifndef __SANITIZE_THREAD__
// The fork has none of the engine's threads, and is none of its business.
TEST_P(StructuredOutputTest, AProcessForksWhileAGrammarIsCompiled) {
  Engine engine(config());
  engine.add_request(takes_long(), [](RequestOutput&&) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    bool refused = false;
    try {
      engine.generate({with_regex("[0-9]{3}")});
    } catch (const Error&) {
      refused = true;
    }
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(engine.generate({with_regex("[0-9]{3}")})[0].outputs[0].text.size(), 3U);
}
#endif

TEST_P(StructuredOutputTest, WhatContradictsItIsRefused) {
  Engine engine(config());
  EngineRequest bad = with_regex("a+");
  bad.sampling_params.ignore_eos = true;
  EXPECT_NE(complaint(engine, bad).find("ignore_eos"), std::string::npos);
  bad = with_regex("a+");
  bad.sampling_params.min_tokens = 2;
  EXPECT_NE(complaint(engine, bad).find("min_tokens"), std::string::npos);
  EXPECT_NE(complaint(engine, with_regex("(unclosed")).find("parenthesis is not closed"), std::string::npos);
  bad = with_regex("a+");
  bad.sampling_params.structured_outputs->json_object = true;
  EXPECT_NE(complaint(engine, bad).find("regex and json_object"), std::string::npos);
  bad = with_regex(std::string((1 << 20) + 1, 'a'));
  EXPECT_NE(complaint(engine, bad).find("max_structured_output_bytes"), std::string::npos);
  EXPECT_TRUE(engine.dead_error().empty());
}

// Requests come, wait for grammars, fail and are aborted while the recorder runs: each step is scheduled
// again as it was.
TEST_P(StructuredOutputTest, ARecordingIsReplayed) {
  EngineConfig recorded = config();
  recorded.kv_cache_memory_bytes = 0;
  recorded.num_gpu_blocks_override = 24;
  recorded.max_num_seqs = 4;
  if (!GetParam()) recorded.num_jump_forward_tokens = 4;
  recorded.flight_recorder_bytes = 1 << 16;  // several segments: a recording begins while requests wait
  Engine engine(recorded);
  for (int round = 0; round < 6; ++round) {
    std::vector<EngineRequest> requests;
    for (int i = 0; i < 6; ++i) {
      const std::string regex = "([a-z]{1,8} ){" + std::to_string(10 + round + i) + "}";
      requests.push_back(i == 5 ? request("Who are you?") : with_regex(regex, 80));
      if (i != 4) continue;
      requests.back().sampling_params.structured_outputs->regex.reset();
      requests.back().sampling_params.structured_outputs->grammar =
          "root ::= \"" + std::string(static_cast<size_t>(round) + 1, 'a') +
          "\" nothing\nnothing ::= nothing";
    }
    engine.generate(std::move(requests));
  }
  const std::string path = testing::TempDir() + "structured" + (GetParam() ? "1" : "0") + ".rec";
  engine.dump_flight_recorder(path);
  const ReplayReport report = replay_recording(path);
  EXPECT_EQ(report.divergence, "");
  EXPECT_GT(report.num_steps, 100U);
  EXPECT_EQ(report.num_identical, report.num_steps);
  std::filesystem::remove(path);
}

// What it thinks is as without a grammar; what follows is as if the thoughts had been the prompt's.
TEST_P(StructuredOutputTest, AGrammarBeginsBehindTheThoughts) {
  const std::string prompt = "Once upon a time";
  const auto free = Engine(config()).generate({request(prompt)})[0].outputs[0].token_ids;
  constexpr std::ptrdiff_t kNumThoughts = 9;
  EngineConfig thinking = config();
  thinking.think_start_token_ids = {7};
  thinking.think_end_token_ids = {free[kNumThoughts - 2], free[kNumThoughts - 1]};
  ASSERT_EQ(std::search(free.begin(), free.end(), thinking.think_end_token_ids.begin(),
                        thinking.think_end_token_ids.end()) -
                free.begin(),
            kNumThoughts - 2);
  const std::vector<int32_t> thoughts(free.begin(), free.begin() + kNumThoughts);
  EngineRequest behind = with_regex("[A-Z][a-z]{2,5}, [0-9]{4}");
  EngineRequest asked = behind;
  behind.prompt_token_ids = Tokenizer::load(QUIRE_DEMO_MODEL)->encode(prompt);
  behind.prompt_token_ids.insert(behind.prompt_token_ids.end(), thoughts.begin(), thoughts.end());
  behind.prompt.clear();
  std::vector<int32_t> expected = thoughts;
  for (const int32_t num_jump_forward_tokens : {0, GetParam() ? 0 : 4}) {
    thinking.num_jump_forward_tokens = num_jump_forward_tokens;
    Engine engine(thinking);
    const auto outputs = engine.generate({asked, behind, request(prompt)});
    const CompletionOutput& held = outputs[1].outputs[0];
    EXPECT_TRUE(std::regex_match(held.text, std::regex("[A-Z][a-z]{2,5}, [0-9]{4}"))) << held.text;
    expected.resize(kNumThoughts);
    expected.insert(expected.end(), held.token_ids.begin(), held.token_ids.end());
    EXPECT_EQ(outputs[0].outputs[0].token_ids, expected) << outputs[0].outputs[0].error;
    EXPECT_EQ(outputs[0].outputs[0].finish_reason, FinishReason::kStop);
    EXPECT_EQ(outputs[2].outputs[0].token_ids, free);
  }
  thinking.enable_in_reasoning = true;
  const auto from_the_first = Engine(thinking).generate({asked})[0].outputs[0];
  EXPECT_TRUE(std::regex_match(from_the_first.text, std::regex("[A-Z][a-z]{2,5}, [0-9]{4}")));
}

TEST_P(StructuredOutputTest, AnAnswerThatThinksIsPreemptedAndGoesOn) {
  EngineConfig thinking = config();
  const auto free = Engine(config()).generate({request("Once upon a time")})[0].outputs[0].token_ids;
  thinking.think_start_token_ids = {7};
  thinking.think_end_token_ids = {free[20]};
  thinking.kv_cache_memory_bytes = 0;
  thinking.max_num_seqs = 4;
  const auto answers = [&](int32_t num_blocks) {
    thinking.num_gpu_blocks_override = num_blocks;
    Engine engine(thinking);
    const auto outputs =
        engine.generate(std::vector<EngineRequest>(4, with_regex("([a-z]{1,8} ){60}end", 200)));
    EXPECT_EQ(engine.stats().num_preemptions > 0, num_blocks < 20);
    std::vector<std::vector<int32_t>> tokens;
    for (const RequestOutput& output : outputs) tokens.push_back(output.outputs[0].token_ids);
    return tokens;
  };
  EXPECT_EQ(answers(18), answers(80));
}

// Text that must follow takes few steps, and the tokens are those that it has without.
TEST(JumpForwardTest, ForcedTextTakesFewerSteps) {
  if (!has_grammar_compiler()) GTEST_SKIP() << "built without a grammar library";
  EngineConfig config;
  config.model = QUIRE_DEMO_MODEL;
  config.max_model_len = 256;
  config.num_threads = 1;
  config.kv_cache_memory_bytes = 16 << 20;
  EngineRequest free;
  free.prompt = "Once upon a time";
  free.sampling_params.temperature = 0;
  free.sampling_params.max_tokens = 48;
  free.sampling_params.logprobs = 1;
  const std::string own_words = Engine(config).generate({free})[0].outputs[0].text;
  std::vector<EngineRequest> requests(5, free);
  for (EngineRequest& request : requests) request.sampling_params.max_tokens = 160;
  requests[0].sampling_params.structured_outputs.emplace().choice = {own_words, "Twice upon a time"};
  for (const size_t i : {1, 2, 3}) {
    auto& params = requests[i].sampling_params.structured_outputs.emplace();
    params.json = JsonText{R"({"type": "object", "properties": {
        "the name of the little girl": {"enum": ["Lily", "Anna"]},
        "what the baker said to the old man": {"type": "string", "maxLength": 10},
        "where they went together in the evening": {"enum": ["to the forest behind the house", "home"]}},
        "required": ["the name of the little girl", "what the baker said to the old man",
                     "where they went together in the evening"]})"};
    params.disable_any_whitespace = i == 2;
  }
  requests[3].sampling_params.temperature = 1;
  requests[3].sampling_params.seed = 5;
  std::vector<RequestOutput> expected;
  std::vector<uint64_t> num_steps;  // that each takes without
  for (const int32_t num_tokens : {0, 3, 12}) {
    config.num_jump_forward_tokens = num_tokens;
    Engine engine(config);
    for (size_t i = 0; i < requests.size(); ++i) {
      const uint64_t before = engine.stats().num_steps;
      const RequestOutput output = engine.generate({requests[i]})[0];
      const uint64_t steps = engine.stats().num_steps - before;
      if (num_tokens == 0) {
        expected.push_back(output);
        num_steps.push_back(steps);
        continue;
      }
      EXPECT_EQ(output.outputs[0].token_ids, expected[i].outputs[0].token_ids);
      EXPECT_EQ(output.outputs[0].text, expected[i].outputs[0].text);
      EXPECT_EQ(output.outputs[0].finish_reason, expected[i].outputs[0].finish_reason);
      EXPECT_EQ(output.outputs[0].logprobs.size(), expected[i].outputs[0].logprobs.size());
      // Its own words a model cuts as the tokenizer does; the keys of a schema this one mostly does not.
      if (num_tokens == 12 && i == 0) {
        EXPECT_LT(steps * 4, num_steps[i]);
      } else if (num_tokens == 12 && i < 3) {
        EXPECT_LT(steps * 5, num_steps[i] * 4);
      }
    }
    const auto together = engine.generate(requests);
    for (size_t i = 0; i < requests.size(); ++i)
      EXPECT_EQ(together[i].outputs[0].token_ids, expected[i].outputs[0].token_ids);
    EXPECT_EQ(engine.stats().num_spec_tokens > 0, num_tokens > 0);
  }
}

INSTANTIATE_TEST_SUITE_P(StepsInFlight, StructuredOutputTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Two" : "One"; });

}  // namespace
}  // namespace quire
