// Sums over the requests of an engine.
#pragma once

#include <cstdint>

namespace quire {

// Every Request that is given this keeps its own part of it up to date: nobody else changes it.
struct RequestTotals {
  int64_t num_waiting_tokens = 0;    // of requests in the queue: tokens that are not computed
  int64_t num_prefill_tokens = 0;    // of running requests: tokens of their prefill that are not computed
  int32_t num_partial_prefills = 0;  // running requests whose prefill is not computed to the end
  int32_t num_long_partial_prefills = 0;  // partial prefills of long prompts
  int32_t num_waiting_for_remote_kvs = 0;
  int32_t num_waiting_for_forks = 0;
  int64_t num_wasted_slots = 0;  // slots of the blocks that requests hold, without a computed token

  bool operator==(const RequestTotals&) const = default;
};

}  // namespace quire
