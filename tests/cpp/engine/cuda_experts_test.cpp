// A mixture of experts on a CUDA device: the trained one of the tests.
#include <gtest/gtest.h>

#include <numeric>

#include "engine/cuda_fixture.h"

namespace quire {
namespace {

class CudaExpertsTest : public CudaEngineTest {};

struct Outcome {
  std::vector<std::vector<int32_t>> token_ids;
  std::vector<ExpertLoad> loads;
  EngineStats stats;
};

uint64_t num_tokens_of(const ExpertLoad& load) {
  return std::accumulate(load.num_tokens.begin(), load.num_tokens.end(), uint64_t{0});
}

Outcome run(const std::string& device, bool eager) {
  EngineConfig config = demo_config(device);
  config.model = "tests/python/data/moe_model";
  config.skip_tokenizer_init = true;
  config.enable_prefix_caching = false;
  config.enforce_eager = eager;
  Engine engine(config);
  for (const ExpertLoad& load : engine.expert_loads()) {
    for (const uint64_t num_tokens : load.num_tokens) EXPECT_EQ(num_tokens, 0U) << "before the first request";
  }
  std::vector<EngineRequest> requests;
  for (int i = 0; i < 11; ++i) {  // no size of a graph: some rows are padding
    requests.push_back(request("", 40));
    for (int token = 0; token < 5 + 9 * i; ++token)
      requests.back().prompt_token_ids.push_back(100 + 31 * i + 7 * token);
  }
  Outcome outcome;
  for (const RequestOutput& output : engine.generate(requests))
    outcome.token_ids.push_back(output.outputs.at(0).token_ids);
  outcome.loads = engine.expert_loads();
  outcome.stats = engine.stats();
  return outcome;
}

TEST_F(CudaExpertsTest, TokensAndLoadsAreTheCpus) {
  const Outcome expected = run("cpu", false);
  ASSERT_EQ(expected.loads.size(), 6U);
  for (const bool eager : {false, true}) {
    SCOPED_TRACE(eager ? "eager" : "graphs");
    const Outcome got = run("cuda", eager);
    EXPECT_EQ(got.stats.num_full_graph_steps > 0, !eager);
    EXPECT_EQ(got.token_ids, expected.token_ids);
    ASSERT_EQ(got.loads.size(), expected.loads.size());
    for (size_t layer = 0; layer < got.loads.size(); ++layer) {
      EXPECT_EQ(got.loads[layer].layer, expected.loads[layer].layer);
      // Of the CPU's prompts the last layer had the last tokens, and here all: no step is too long for a
      // graph.
      if (layer + 1 == got.loads.size()) {
        EXPECT_EQ(num_tokens_of(got.loads[layer]), num_tokens_of(got.loads[0]));
        EXPECT_LT(num_tokens_of(expected.loads[layer]), num_tokens_of(expected.loads[0]));
        continue;
      }
      EXPECT_EQ(got.loads[layer].num_tokens, expected.loads[layer].num_tokens) << got.loads[layer].layer;
    }
  }
}

}  // namespace
}  // namespace quire
