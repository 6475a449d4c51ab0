// An engine core whose workers have, or have not, a scripted drafter: what its requests get.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "engine/engine_core.h"
#include "worker/backend.h"
#include "worker/scripted_drafter.h"

namespace quire {

inline constexpr int32_t kNumDrafts = 3;  // of a request in a step, at most

struct SpeculationRun {
  struct Result {
    std::vector<int32_t> token_ids;
    std::vector<PositionLogprobs> logprobs;
    FinishReason finish_reason = FinishReason::kNone;
  };
  std::map<RequestId, Result> results;
  SchedulerStats stats;

  ScriptedDrafter::Outputs outputs() const {
    ScriptedDrafter::Outputs outputs;
    for (const auto& [id, result] : results) outputs[id] = result.token_ids;
    return outputs;
  }
};

// Every third request comes some steps later. Where there is a path, what was recorded goes there.
inline SpeculationRun run_to_end(const EngineConfig& config, const Backend& backend,
                                 const std::vector<EngineCoreRequest>& requests,
                                 const std::string& recording = {}) {
  EngineCore core(config, make_local_executor(config, backend));
  SpeculationRun run;
  const auto add = [&](bool late) {
    for (const EngineCoreRequest& request : requests) {
      if ((request.request_id % 3 == 0) == late) core.add_request(EngineCoreRequest(request));
    }
  };
  add(/*late=*/false);
  EngineCoreOutputs outputs;
  for (int i = 0; core.has_unfinished_requests() || i <= 6; ++i) {
    if (i == 6) add(/*late=*/true);
    core.step_once(outputs);
    for (const EngineCoreOutput& output : outputs.outputs) {
      EXPECT_EQ(*output.error, "");
      SpeculationRun::Result& result = run.results[output.request_id];
      const auto tokens = outputs.new_token_ids(output);
      result.token_ids.insert(result.token_ids.end(), tokens.begin(), tokens.end());
      EXPECT_TRUE(output.new_logprobs.empty() || output.new_logprobs->size() == tokens.size());
      result.logprobs.insert(result.logprobs.end(), output.new_logprobs->begin(), output.new_logprobs->end());
      if (output.finish_reason != FinishReason::kNone) result.finish_reason = output.finish_reason;
    }
  }
  run.stats = core.stats();
  if (!recording.empty()) core.dump_flight_recorder(recording);
  return run;
}

inline void expect_same(const SpeculationRun& expected, const SpeculationRun& actual) {
  ASSERT_EQ(actual.results.size(), expected.results.size());
  for (const auto& [id, result] : expected.results) {
    SCOPED_TRACE(testing::Message() << "request " << id);
    const SpeculationRun::Result& other = actual.results.at(id);
    EXPECT_EQ(other.token_ids, result.token_ids);
    EXPECT_EQ(other.finish_reason, result.finish_reason);
    ASSERT_EQ(other.logprobs.size(), result.logprobs.size());
    for (size_t i = 0; i < result.logprobs.size(); ++i) {
      ASSERT_EQ(other.logprobs[i].size(), result.logprobs[i].size());
      EXPECT_EQ(other.logprobs[i][0].token_id, result.logprobs[i][0].token_id);
      EXPECT_NEAR(other.logprobs[i][0].logprob, result.logprobs[i][0].logprob, 1e-4);
    }
  }
}

}  // namespace quire
