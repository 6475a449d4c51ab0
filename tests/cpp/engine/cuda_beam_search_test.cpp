// Beam search on a CUDA device, where blocks are copied in order with the steps: equal to the CPU's. Skipped
// where there is no device.
#include <gtest/gtest.h>

#include "engine/cuda_fixture.h"

namespace quire {
namespace {

std::vector<EngineRequest> searches() {
  std::vector<EngineRequest> requests;
  for (int i = 0; i < 6; ++i) {
    EngineRequest& one =
        requests.emplace_back(request(i % 2 == 0 ? "Once upon a time" : "The baker said", 60));
    one.sampling_params.beam_width = one.sampling_params.n = 2 + i;
    one.sampling_params.ignore_eos = i % 3 == 0;
    requests.push_back(request("Who are you?", 70));
  }
  return requests;
}

std::vector<RequestOutput> found(EngineConfig config, bool async_scheduling, int32_t num_blocks = 0) {
  config.async_scheduling = async_scheduling;
  if (num_blocks > 0) {
    config.kv_cache_memory_bytes = 0;
    config.num_gpu_blocks_override = num_blocks;
    config.max_num_seqs = 10;
  }
  Engine engine(config);
  auto outputs = engine.generate(searches());
  const EngineStats stats = engine.stats();
  EXPECT_EQ(stats.num_free_blocks, stats.num_total_blocks);
  return outputs;
}

void expect_equal(const std::vector<RequestOutput>& outputs, const std::vector<RequestOutput>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(outputs[i].outputs.size(), expected[i].outputs.size());
    for (size_t j = 0; j < expected[i].outputs.size(); ++j) {
      const CompletionOutput& here = outputs[i].outputs[j];
      const CompletionOutput& there = expected[i].outputs[j];
      EXPECT_EQ(here.token_ids, there.token_ids) << i << ", " << j << ": " << here.error;
      if (there.cumulative_logprob) {
        EXPECT_NEAR(here.cumulative_logprob.value(), *there.cumulative_logprob, 2e-3) << i << ", " << j;
      }
    }
  }
}

TEST_F(CudaEngineTest, SearchesFindWhatTheCpusFind) {
  const auto expected = found(demo_config("cpu"), false);
  for (const bool async : {false, true}) {
    expect_equal(found(demo_config("cuda"), async), expected);
    expect_equal(found(demo_config("cuda"), async, /*num_blocks=*/28), expected);
  }
}

}  // namespace
}  // namespace quire
