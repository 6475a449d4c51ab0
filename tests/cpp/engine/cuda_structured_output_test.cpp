// Answers under a grammar on a CUDA device, whose masks wait for the step before: equal to the CPU's. Skipped
// where there is no device.
#include <gtest/gtest.h>

#include <regex>

#include "engine/cuda_fixture.h"
#include "grammar/grammar.h"

namespace quire {
namespace {

constexpr const char* kRegexes[] = {"[A-Z][a-z]{2,5}, [0-9]{4}", "([a-z]+ ){12}end", "(yes|no|maybe)",
                                    "[^a-z]{20}"};

// Every other one is free.
std::vector<EngineRequest> mixed_requests() {
  std::vector<EngineRequest> requests;
  for (int i = 0; i < 24; ++i) {
    requests.push_back(request(i % 3 == 0 ? "Once upon a time" : "The baker", 30 + i));
    if (i % 2 == 0) continue;
    SamplingParams& params = requests.back().sampling_params;
    params.ignore_eos = false;
    params.structured_outputs.emplace().regex = kRegexes[i / 2 % 4];
  }
  return requests;
}

std::vector<std::vector<int32_t>> tokens_of(EngineConfig config, bool async_scheduling) {
  config.async_scheduling = async_scheduling;
  Engine engine(config);
  std::vector<std::vector<int32_t>> tokens;
  for (const RequestOutput& output : engine.generate(mixed_requests())) {
    EXPECT_EQ(output.outputs.at(0).error, "");
    tokens.push_back(output.outputs.at(0).token_ids);
  }
  return tokens;
}

TEST_F(CudaEngineTest, ConstrainedAnswersEqualTheCpus) {
  if (!has_grammar_compiler()) GTEST_SKIP() << "built without a grammar library";
  const auto expected = tokens_of(demo_config("cpu"), false);
  for (const bool async : {false, true}) EXPECT_EQ(tokens_of(demo_config("cuda"), async), expected) << async;
}

TEST_F(CudaEngineTest, ConstrainedAnswersFitWhateverTheTemperature) {
  if (!has_grammar_compiler()) GTEST_SKIP() << "built without a grammar library";
  Engine engine(demo_config("cuda", "bfloat16"));
  std::vector<EngineRequest> requests = mixed_requests();
  for (EngineRequest& one : requests) {
    one.sampling_params.temperature = 1.5F;
    one.sampling_params.top_p = 0.95F;
  }
  const auto outputs = engine.generate(requests);
  for (size_t i = 1; i < outputs.size(); i += 2) {
    const CompletionOutput& output = outputs[i].outputs.at(0);
    if (output.finish_reason == FinishReason::kLength) continue;
    EXPECT_EQ(output.finish_reason, FinishReason::kStop) << output.error;
    EXPECT_TRUE(std::regex_match(output.text, std::regex(kRegexes[i / 2 % 4]))) << output.text;
  }
}

}  // namespace
}  // namespace quire
