// A workload: when requests come and how long they are. Prompts are made up when they are needed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace quire {

// Tokens of a prompt that other prompts may have too, at the same place: equal keys, equal tokens.
struct PromptSegment {
  uint64_t key = 0;
  int32_t num_tokens = 0;
};

struct TraceRequest {
  int64_t arrival_ns = 0;
  int64_t deadline_ns = 0;  // after the arrival; 0: none
  int32_t prompt_len = 0;   // >= 1
  int32_t output_len = 0;   // >= 1
  int32_t priority = 0;
  int32_t user = 0;            // Trace::users
  uint32_t first_segment = 0;  // Trace::segments: how the prompt begins; the rest of it is its own
  uint32_t num_segments = 0;
};

struct Trace {
  std::vector<TraceRequest> requests;  // by arrival
  std::vector<PromptSegment> segments;
  std::vector<std::string> users{""};

  // The tokens of requests[index]: a function of the trace and `seed` alone.
  std::vector<int32_t> make_prompt(size_t index, uint64_t seed) const;
};

// Reads JSON lines of either form, and sorts them by arrival (equal ones stay in order):
//   {"arrival": s, "prompt_len": n, "output_len": n, "prefix": "name", "prefix_len": n, "priority": 0,
//    "user": "", "deadline_ms": 0}             the first three are required
//   {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]}     Mooncake's traces: an id
//                                               names 512 tokens together with all tokens before them
// Empty lines are skipped. Throws InvalidArgument with the line's number and the field.
Trace load_trace(const std::string& path);

}  // namespace quire
