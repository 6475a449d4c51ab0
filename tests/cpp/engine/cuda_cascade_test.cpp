// Requests that share what lies in front, which a device reads once for all of them, against requests that
// read it each.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "engine/cuda_fixture.h"

namespace quire {
namespace {

class CudaCascadeTest : public CudaEngineTest {
 protected:
  void SetUp() override {
    CudaEngineTest::SetUp();
    setenv("QUIRE_CASCADE_ATTENTION", "always", 1);
  }
  void TearDown() override { unsetenv("QUIRE_CASCADE_ATTENTION"); }

  static EngineConfig config() {
    EngineConfig config = demo_config("cuda", "bfloat16");
    config.max_model_len = 512;
    config.max_num_batched_tokens = 512;
    return config;
  }
  // Of requests that begin with the same 200 tokens and more, and end at different times.
  static std::vector<CompletionOutput> answers(const EngineConfig& config) {
    std::string story;
    for (int i = 0; i < 30; ++i) story += "Once upon a time a baker went to the lighthouse. ";
    Engine engine(config);
    engine.generate({request(story, 1)});
    std::vector<EngineRequest> requests;
    for (const char* end : {"The baker", "A small boat", "In the morning", "She opened the door", "It was",
                            "Tell me", "Nobody", "The sea", "When he came", "There was", "A cat", "He"}) {
      requests.push_back(request(story + end, 20 + 5 * static_cast<int32_t>(requests.size())));
      requests.back().sampling_params.logprobs = 0;
    }
    // Without anything in common, in the steps in between.
    requests.push_back(request("The end", 12));
    requests.back().sampling_params.logprobs = 0;
    std::vector<CompletionOutput> answers;
    for (const RequestOutput& output : engine.generate(std::move(requests))) {
      EXPECT_EQ(output.outputs.at(0).error, "");
      answers.push_back(output.outputs[0]);
    }
    return answers;
  }
};

TEST_F(CudaCascadeTest, ReadingOnceForAllIsReadingForEach) {
  EngineConfig each = config();
  each.disable_cascade_attn = true;
  const std::vector<CompletionOutput> expected = answers(each);
  for (const bool eager : {false, true}) {
    EngineConfig once = config();
    once.enforce_eager = eager;
    const std::vector<CompletionOutput> actual = answers(once);
    ASSERT_EQ(actual.size(), expected.size());
    size_t num_tokens = 0, num_same = 0;
    bool all_bits = true;
    for (size_t i = 0; i < expected.size(); ++i) {
      const auto& a = expected[i];
      const auto& b = actual[i];
      ASSERT_EQ(a.token_ids.size(), b.token_ids.size());
      num_tokens += a.token_ids.size();
      // Sums are rounded otherwise: behind a near tie that falls the other way nothing is compared.
      for (size_t t = 0; t < a.token_ids.size() && a.token_ids[t] == b.token_ids[t]; ++t, ++num_same) {
        const float x = a.logprobs[t].at(0).logprob, y = b.logprobs[t].at(0).logprob;
        EXPECT_NEAR(x, y, 0.15) << "request " << i << ", token " << t;
        all_bits = all_bits && x == y;
      }
    }
    EXPECT_GT(num_same, num_tokens * 3 / 4) << "eager " << eager;
    EXPECT_FALSE(all_bits) << "nothing was read otherwise";
  }
}

}  // namespace
}  // namespace quire
