// What a simulation measures.
#pragma once

#include <cstdint>

#include "simulator/histogram.h"
#include "simulator/timeline.h"

namespace quire {

// Integers throughout, so that the metrics of engines add up to the same, bitwise, in any order.
struct Metrics {
  int64_t num_finished = 0;              // with all their tokens
  int64_t num_refused = 0;               // at the door: too long, or too many in the queue
  int64_t num_expired = 0;               // by their deadline
  int64_t num_prompt_tokens = 0;         // of the finished
  int64_t num_output_tokens = 0;         // of all
  Histogram ttft, itl, e2e, queue_time;  // nanoseconds

  int64_t num_steps = 0;
  int64_t num_scheduled_tokens = 0;
  int64_t num_preemptions = 0;
  int64_t prefix_cache_queries = 0;
  int64_t prefix_cache_hits = 0;
  int64_t busy_ns = 0;  // steps running
  int64_t end_ns = 0;   // the last step's end

  // Integrals over time, in nanoseconds times a count.
  __int128 used_blocks = 0;
  __int128 used_slots = 0;
  __int128 wasted_slots = 0;
  __int128 running_reqs = 0;
  // Slots, and tokens in them, were each request given max_model_len slots while it runs.
  __int128 contiguous_slots = 0;
  __int128 contiguous_tokens = 0;
  int64_t peak_used_blocks = 0;  // of one engine
  int64_t peak_running_reqs = 0;
  // How evenly the router spread the work over the engines.
  int64_t num_engines = 0;
  int64_t most_requests = 0, fewest_requests = INT64_MAX;
  int64_t most_tokens = 0, fewest_tokens = INT64_MAX;  // scheduled

  Timeline timeline;

  void merge(const Metrics& other);
};

}  // namespace quire
