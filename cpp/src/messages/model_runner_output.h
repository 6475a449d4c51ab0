// One step's results, from the workers to the scheduler.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "messages/scheduler_output.h"

namespace quire {

struct SampledTokens {
  RequestId request_id = 0;
  std::vector<int32_t> token_ids;          // 1 to k + 1; none while the prompt is not yet computed
  std::vector<PositionLogprobs> logprobs;  // one for each, when asked for
  std::string error;                       // this request failed; the others did not

  template <class A>
  void fields(A& a) {
    a(request_id, token_ids, logprobs, error);
  }
};

struct ModelRunnerOutput {
  StepId step_id = 0;
  std::vector<SampledTokens> sampled;  // every request of the step, in the plan's order
  std::string error;                   // the step failed as a whole

  template <class A>
  void fields(A& a) {
    a(step_id, sampled, error);
  }
};

}  // namespace quire
