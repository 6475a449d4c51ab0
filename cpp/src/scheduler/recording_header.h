// What a recording says of the engine it comes from: enough to build the same scheduler again.
#pragma once

#include <string>

#include "messages/archive.h"
#include "messages/kv_cache_spec.h"
#include "scheduler/scheduler_config.h"

namespace quire {

template <class A>
void visit_fields(A& a, SchedulerConfig& c) {
  a(c.max_num_seqs, c.max_num_batched_tokens, c.max_model_len, c.max_in_flight_steps, c.policy,
    c.enable_chunked_prefill, c.long_prefill_token_threshold, c.max_num_partial_prefills,
    c.max_long_partial_prefills, c.enable_prefix_caching, c.enable_kv_cache_events,
    c.scheduler_reserve_full_isl, c.watermark, c.num_lookahead_tokens, c.max_num_encoder_input_tokens,
    c.encoder_cache_size, c.disable_chunked_mm_input, c.kv_load_failure_policy, c.max_loras,
    c.max_awaited_lora_loads);
}

struct RecordingHeader {
  std::string model;               // architecture and backend, for people
  uint8_t shares_arena = 0;        // with other engines: their part in its decisions is recorded
  uint8_t has_kv_connector = 0;    // whose answers are recorded
  double unix_time_of_zero = 0.0;  // of the clock that times are told by
  SchedulerConfig scheduler;
  KVCacheConfig kv_cache;

  template <class A>
  void fields(A& a) {
    a(model, shares_arena, has_kv_connector, unix_time_of_zero, scheduler, kv_cache);
  }
};

}  // namespace quire
