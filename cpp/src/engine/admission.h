// Whether there is room for a request, and time: decided at the door, before anything of it is in the engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "messages/engine_core_messages.h"
#include "quire/engine_config.h"

namespace quire {

struct AdmissionRequest {
  int64_t num_prompt_tokens = 0;
  int32_t n = 1;
  int64_t deadline_ms = 0;      // 0: none
  bool waits_for_lora = false;  // its adapter is not in memory: it does not begin at once, whoever runs
};

// What the front end knows when requests come.
struct AdmissionState {
  bool draining = false;
  std::string closed;                 // why nothing is accepted, and what would help; empty: it is
  int64_t num_unfinished_reqs = 0;    // one for each completion
  int64_t num_unfinished_tokens = 0;  // of their prompts, once for each completion
  // Those that the engine core does not have yet, since their adapters are being read.
  int32_t num_waiting_for_lora = 0;
  int64_t num_tokens_waiting_for_lora = 0;
  // Ever sent to the engine core, one for each completion, and their prompt tokens: what `stats` has not seen
  // yet is on the way.
  uint64_t num_submitted_reqs = 0;
  uint64_t num_submitted_tokens = 0;
  SchedulerStats stats;
};

// Throws ResourceExhausted, with the limit or the prediction, unless all of `requests` may come in. `config`
// says what a step may have.
void check_admission(const EngineConfig& config, const AdmissionState& state,
                     std::span<const AdmissionRequest> requests);

}  // namespace quire
