// Drafts on a CUDA device. Skipped where there is none.
#include "engine/cuda_fixture.h"
#include "engine/speculation_rig.h"

namespace quire {
namespace {

TEST_F(CudaEngineTest, DraftsChangeNoTokenAndRunInGraphs) {
  std::vector<EngineCoreRequest> requests;
  for (const RequestId id : {1U, 2U, 4U, 5U, 7U}) {
    EngineCoreRequest& request = requests.emplace_back();
    request.request_id = id;
    for (int32_t i = 0; i < 12; ++i)
      request.prompt_token_ids.edit().push_back(10 + (i * 7 + static_cast<int32_t>(id) * 131) % 4000);
    SamplingParams& params = request.sampling_params.edit();
    params.max_tokens = 1 + 10 * (1 + kNumDrafts);
    params.temperature = id % 2 == 0 ? 0.8F : 0.0F;
    if (id == 5) params.repetition_penalty = 1.3F;
    if (id == 7) params.logprobs = 1;
    request.seed = id;
  }
  for (const bool eager : {true, false}) {
    EngineConfig config = demo_config("cuda");
    config.enforce_eager = eager;
    const Backend backend = find_backend(config);
    const SpeculationRun expected = run_to_end(config, backend, requests);
    for (const int32_t num_right : {0, 2, kNumDrafts}) {
      Backend drafting = backend;
      drafting.speculation = {
          kNumDrafts, std::make_shared<ScriptedDrafter>(expected.outputs(), [num_right](RequestId, size_t) {
            return ScriptedDrafter::Share{kNumDrafts, num_right};
          })};
      const SpeculationRun actual = run_to_end(config, drafting, requests);
      expect_same(expected, actual);
      EXPECT_EQ(actual.stats.num_accepted_spec_tokens == 0, num_right == 0);
      if (num_right == kNumDrafts) {
        EXPECT_EQ(actual.stats.num_full_graph_steps, eager ? 0U : 10U);
      }
    }
  }
}

}  // namespace
}  // namespace quire
