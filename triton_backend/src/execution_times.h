// What a request's statistics say: when its execution began, its computing began and ended, in the server's
// clock.
#pragma once

#include <algorithm>
#include <cstdint>

#include "quire/request_output.h"

namespace quire::triton {

struct ExecutionTimes {
  uint64_t exec_start = 0, compute_start = 0, compute_end = 0;
};

// queue: before exec_start, in the server's queue and the engine's; compute input: reading and tokenizing,
// until compute_start; infer: from the first step that the request is in to its last token, at compute_end.
//
// `submitted_ns` is when Execute noted that the engine has the request: 0 when it has not yet, and perhaps
// long after the first step, because the engine does not wait for that. Never throws; whole nanoseconds,
// ascending.
inline ExecutionTimes execution_times(uint64_t received_ns, uint64_t submitted_ns, uint64_t now_ns,
                                      const RequestMetrics& metrics) {
  const auto at = [&](double seconds, uint64_t earliest) {
    return seconds > 0 ? std::clamp(static_cast<uint64_t>(seconds * 1e9), earliest, now_ns) : now_ns;
  };
  ExecutionTimes times;
  times.compute_start = at(metrics.first_scheduled_time, received_ns);
  times.compute_end = at(metrics.last_token_time, times.compute_start);
  const uint64_t input_ns = submitted_ns > received_ns ? submitted_ns - received_ns : 0;
  times.exec_start = times.compute_start - std::min(input_ns, times.compute_start - received_ns);
  return times;
}

}  // namespace quire::triton
