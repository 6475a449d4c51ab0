// What can be done with a recording that EngineBase::dump_flight_recorder wrote.
#pragma once

#include <cstdint>
#include <string>

#include "quire/export.h"

namespace quire {

struct ReplayReport {
  std::string model;           // architecture, dtype and backend of the engine that was recorded
  double seconds = 0.0;        // from the first recorded event to the last
  uint64_t num_requests = 0;   // that came while it was recorded, or were there when it began
  uint64_t num_steps = 0;      // scheduled anew
  uint64_t num_identical = 0;  // steps scheduled exactly as recorded
  uint64_t num_tokens = 0;     // scheduled in them
  uint64_t num_preemptions = 0;
  std::string divergence;  // the first step scheduled otherwise, where replay ends, and how; empty: none
};

// Feeds a recording to a fresh scheduler and compares, step by step, what it decides. Throws InvalidArgument
// for a file that is not a recording, or is torn or damaged, with the offset.
QUIRE_API ReplayReport replay_recording(const std::string& path);

// A timeline for Perfetto or chrome://tracing, as JSON: steps, requests (queued, prefill, decode, preempted),
// and counters. `trace_path` is overwritten. Throws as replay_recording does; a divergence ends the timeline.
QUIRE_API ReplayReport write_perfetto_trace(const std::string& recording_path, const std::string& trace_path);

}  // namespace quire
