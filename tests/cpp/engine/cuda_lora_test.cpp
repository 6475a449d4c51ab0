// Adapters on a CUDA device against the CPU, which is held to PEFT. Skipped where there is no device.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "engine/cuda_fixture.h"
#include "engine/lora_engine_rig.h"

namespace quire {
namespace {

class CudaLoraTest : public CudaEngineTest {
 protected:
  static EngineConfig config(const std::string& device, const std::string& dtype = "float32",
                             int32_t max_loras = 2) {
    EngineConfig config = demo_config(device, dtype);
    config.enable_lora = true;
    config.max_loras = max_loras;
    return config;
  }
  // Of both trained adapters and of none, of lengths that come and go at different steps.
  static std::vector<EngineRequest> mixed_requests(int count) {
    const std::string names[] = {"sailor", "", "json"};
    const std::string prompts[] = {"Once upon a time", "User: List the days of the week.\nAssistant:",
                                   "A small boat drifted past the lighthouse while", "It was raining"};
    std::vector<EngineRequest> requests;
    for (int i = 0; i < count; ++i) {
      requests.push_back(request(prompts[i % 4], 6 + i * 5 % 31));
      requests.back().lora_name = names[i % 3];
      requests.back().sampling_params.logprobs = 5;
    }
    return requests;
  }
  static std::vector<CompletionOutput> generate(const EngineConfig& config,
                                                std::vector<EngineRequest> requests) {
    Engine engine(config);
    for (const char* name : {"sailor", "json"}) engine.add_lora({name, 0, trained_adapter(name)});
    std::vector<CompletionOutput> completions;
    for (RequestOutput& output : engine.generate(std::move(requests))) {
      EXPECT_EQ(output.outputs.at(0).error, "");
      completions.push_back(std::move(output.outputs[0]));
    }
    return completions;
  }
  static void expect_same_tokens(const std::vector<CompletionOutput>& found,
                                 const std::vector<CompletionOutput>& expected) {
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i].token_ids, expected[i].token_ids) << i;
  }
};

TEST_F(CudaLoraTest, AMixedBatchIsTheCpus) {
  const auto expected = generate(config("cpu"), mixed_requests(21));
  const auto found = generate(config("cuda"), mixed_requests(21));
  expect_same_tokens(found, expected);
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i].logprobs.size(), expected[i].logprobs.size());
    for (size_t t = 0; t < found[i].logprobs.size(); ++t) {
      const float one = found[i].logprobs[t].at(0).logprob, other = expected[i].logprobs[t].at(0).logprob;
      ASSERT_NEAR(one, other, 1e-3) << "request " << i << ", token " << t;
    }
  }
  // They do say different things.
  EXPECT_NE(expected[0].token_ids, expected[4].token_ids);
}

// Each step may bring an adapter over another one that the step in flight still reads.
TEST_F(CudaLoraTest, AdaptersThatTakeTurnsInOneSlotAreTheCpus) {
  const auto expected = generate(config("cpu"), mixed_requests(30));
  for (const bool async : {false, true}) {
    EngineConfig one_slot = config("cuda", "float32", /*max_loras=*/1);
    one_slot.max_cpu_loras = 2;
    one_slot.async_scheduling = async;
    one_slot.max_num_seqs = 5;
    expect_same_tokens(generate(one_slot, mixed_requests(30)), expected);
  }
}

// Of so few rows, which the same kernels compute in whatever company.
TEST_F(CudaLoraTest, GraphsAndStepsInFlightChangeNothing) {
  for (const char* dtype : {"float32", "bfloat16", "float16"}) {
    EngineConfig one = config("cuda", dtype);
    one.max_num_seqs = 4;
    one.enforce_eager = true;
    one.async_scheduling = false;
    const auto expected = generate(one, mixed_requests(12));
    for (const bool eager : {false, true}) {
      for (const bool async : {false, true}) {
        one.enforce_eager = eager;
        one.async_scheduling = async;
        SCOPED_TRACE(testing::Message() << dtype << " eager " << eager << " async " << async);
        expect_same_tokens(generate(one, mixed_requests(12)), expected);
      }
    }
  }
}

// Prompts of more rows than the kernels of few take, in chunks and whole.
TEST_F(CudaLoraTest, LogprobsOfLongPromptsAreTheCpus) {
  const auto logprobs = [](EngineConfig one, int32_t max_num_batched_tokens) {
    one.max_num_batched_tokens = max_num_batched_tokens;
    Engine engine(one);
    for (const char* name : {"sailor", "json"}) engine.add_lora({name, 0, trained_adapter(name)});
    std::vector<EngineRequest> requests = mixed_requests(18);
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].prompt.clear();
      for (size_t t = 0; t < 100 + 8 * i; ++t)
        requests[i].prompt_token_ids.push_back(static_cast<int32_t>((t * t + 7 * i + 40) % 900));
      requests[i].sampling_params.prompt_logprobs = 0;
      requests[i].sampling_params.max_tokens = 1;
    }
    std::vector<float> values;
    for (const RequestOutput& output : engine.generate(std::move(requests))) {
      EXPECT_EQ(output.outputs.at(0).error, "");
      for (size_t t = 1; t < output.prompt_logprobs->size(); ++t)
        values.push_back((*output.prompt_logprobs)[t].at(0).logprob);
    }
    return values;
  };
  const std::vector<float> expected = logprobs(config("cpu"), 2048);
  const auto mean_error = [&](const std::vector<float>& found) {
    EXPECT_EQ(found.size(), expected.size());
    double sum = 0;
    for (size_t i = 0; i < found.size(); ++i) sum += std::abs(found[i] - expected[i]);
    return sum / static_cast<double>(found.size());
  };
  const double of_bfloat16 = mean_error(logprobs(config("cpu", "bfloat16"), 2048));
  // float16 has three bits more.
  for (const auto& [dtype, bound] :
       {std::pair{"float32", 1e-4}, {"bfloat16", 1.25 * of_bfloat16}, {"float16", of_bfloat16 / 4}}) {
    for (const int32_t max_num_batched_tokens : {2048, 200}) {
      const double error = mean_error(logprobs(config("cuda", dtype), max_num_batched_tokens));
      EXPECT_LE(error, bound) << dtype << " in chunks of " << max_num_batched_tokens;
      std::printf("%s, at most %d tokens a step: %.6f apart on average, bound %.6f\n", dtype,
                  max_num_batched_tokens, error, bound);
    }
  }
}

TEST_F(CudaLoraTest, SlotsAreInTheMemoryThatIsPlanned) {
  Engine engine(config("cuda", "bfloat16", 3));
  const RankMemory memory = engine.model().memory;
  EXPECT_GT(memory.adapters, 0);
  Engine plain(demo_config("cuda", "bfloat16"));
  EXPECT_EQ(plain.model().memory.adapters, 0);
}

}  // namespace
}  // namespace quire
