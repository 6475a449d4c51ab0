// What requests ask of sampling besides numbers means on a CUDA device what it means on the CPU.
#include <cmath>

#include "engine/cuda_fixture.h"

namespace quire {
namespace {

class CudaSamplingTest : public CudaEngineTest {
 protected:
  static std::vector<RequestOutput> outputs_of(EngineConfig config,
                                               const std::vector<EngineRequest>& requests) {
    config.max_logprobs = -1;
    config.think_start_token_ids = {300, 301};
    config.think_end_token_ids = {302, 303, 304};
    Engine engine(config);
    return engine.generate(requests);
  }
  static void expect_same_tokens(const std::vector<EngineRequest>& requests) {
    const auto cpu = outputs_of(demo_config("cpu"), requests);
    for (const bool async : {false, true}) {
      EngineConfig config = demo_config("cuda");
      config.async_scheduling = async;
      const auto cuda = outputs_of(config, requests);
      for (size_t i = 0; i < cpu.size(); ++i)
        EXPECT_EQ(cuda[i].outputs[0].token_ids, cpu[i].outputs[0].token_ids) << i << " " << async;
    }
  }
  static void expect_near(const PositionLogprobs& cuda, const PositionLogprobs& cpu) {
    ASSERT_EQ(cuda.size(), cpu.size());
    for (size_t i = 0; i < cpu.size(); ++i) EXPECT_NEAR(cuda[i].logprob, cpu[i].logprob, 2e-3) << i;
    if (!cpu.empty()) {
      EXPECT_EQ(cuda[0].token_id, cpu[0].token_id);
    }
  }
};

TEST_F(CudaSamplingTest, AllowedTokensAndBadWordsAreTheCpus) {
  std::vector<EngineRequest> requests;
  for (const char* prompt : {"Once upon a time", "The baker said", "In the morning", "It was raining"})
    requests.push_back(request(prompt, 40));
  requests[0].sampling_params.bad_words = {"the", "lived in", "a baker", "One"};
  requests[1].sampling_params.allowed_token_ids.emplace();
  for (int32_t id = 50; id < 3000; id += 3) requests[1].sampling_params.allowed_token_ids->push_back(id);
  // More than are sent with a step's inputs: they go in rounds.
  for (int32_t i = 0; i < 2500; ++i) requests[2].sampling_params.bad_words.push_back("w" + std::to_string(i));
  requests[2].sampling_params.bad_words.emplace_back("the");
  requests[3].sampling_params.allowed_token_ids = requests[1].sampling_params.allowed_token_ids;
  requests[3].sampling_params.bad_words = {"a"};
  requests[3].sampling_params.repetition_penalty = 1.2F;
  expect_same_tokens(requests);
}

TEST_F(CudaSamplingTest, ThinkingEndsWhereItDoesOnTheCpu) {
  std::vector<EngineRequest> requests;
  for (const int32_t budget : {0, 1, 9}) {
    EngineRequest& thinking = requests.emplace_back(request("", 30));
    thinking.prompt_token_ids = {50, 60, 300, 301, 70};
    thinking.sampling_params.max_thinking_tokens = budget;
    requests.push_back(request("The baker said", 30));
  }
  expect_same_tokens(requests);
}

TEST_F(CudaSamplingTest, LogprobsOfAllTokensAndOfSomeByIdAreTheCpus) {
  std::vector<EngineRequest> requests = {request("Once upon a time", 5), request("The baker said", 5),
                                         request("It was raining", 5)};
  requests[0].sampling_params.logprobs = -1;
  requests[1].sampling_params.logprob_token_ids = {5, 4000, 17, 5};
  requests[2].sampling_params.logprobs = 150;
  const auto cpu = outputs_of(demo_config("cpu"), requests), cuda = outputs_of(demo_config("cuda"), requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto& expected = cpu[i].outputs[0].logprobs;
    const auto& found = cuda[i].outputs[0].logprobs;
    ASSERT_EQ(found.size(), expected.size());
    for (size_t k = 0; k < found.size(); ++k) expect_near(found[k], expected[k]);
  }
}

TEST_F(CudaSamplingTest, LogprobsOfPromptsAreTheCpusHoweverTheyAreComputed) {
  std::vector<EngineRequest> requests;
  for (const int32_t count : {0, 4, 150}) {
    std::string prompt;
    for (int i = 0; i < 12; ++i) prompt += "Tell me a story about a lighthouse. ";
    requests.push_back(request(prompt + std::to_string(count), 8));
    requests.back().sampling_params.prompt_logprobs = count;
  }
  requests.push_back(request("It was raining", 20));
  const auto cpu = outputs_of(demo_config("cpu"), requests);
  for (const int32_t max_num_batched_tokens : {256, 40}) {
    EngineConfig config = demo_config("cuda");
    config.max_num_batched_tokens = max_num_batched_tokens;
    config.max_num_seqs = 7;  // logits of seven rows at a time
    const auto cuda = outputs_of(config, requests);
    EXPECT_EQ(cuda[3].prompt_logprobs, nullptr);
    for (size_t i = 0; i < 3; ++i) {
      ASSERT_EQ(cuda[i].prompt_logprobs->size(), cuda[i].prompt_token_ids->size());
      for (size_t k = 0; k < cuda[i].prompt_logprobs->size(); ++k)
        expect_near((*cuda[i].prompt_logprobs)[k], (*cpu[i].prompt_logprobs)[k]);
    }
  }
}

}  // namespace
}  // namespace quire
