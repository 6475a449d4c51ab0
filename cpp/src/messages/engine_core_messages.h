// What crosses between a front end and the engine core: token ids in, token ids out. Text stays outside.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "messages/archive.h"
#include "quire/request_output.h"
#include "quire/sampling_params.h"

namespace quire {

// Names a request inside one engine. The front end maps it to the caller's own string.
using RequestId = uint64_t;

template <class A>
void visit_fields(A& a, SamplingParams& p) {
  a(p.temperature, p.top_k, p.top_p, p.min_p, p.presence_penalty, p.frequency_penalty, p.repetition_penalty,
    p.logit_bias, p.seed, p.max_tokens, p.min_tokens, p.stop, p.stop_token_ids, p.ignore_eos,
    p.include_stop_str_in_output, p.n, p.logprobs, p.detokenize, p.skip_special_tokens, p.output_kind);
}

template <class A>
void visit_fields(A& a, Logprob& logprob) {
  a(logprob.token_id, logprob.logprob, logprob.rank);
}

// Validated and tokenized: the engine core trusts it.
struct EngineCoreRequest {
  RequestId request_id = 0;
  std::vector<int32_t> prompt_token_ids;  // at least one
  std::vector<int32_t> output_token_ids;  // generated earlier, perhaps by another engine
  SamplingParams sampling_params;         // n is 1, seed is set, max_tokens is within max_model_len
  std::vector<int32_t> eos_token_ids;     // empty when they are to be ignored
  int32_t priority = 0;                   // a lower value is served first
  double arrival_time = 0.0;              // seconds, of the front end's clock
  std::string cache_salt;                 // prefix blocks are shared only between equal salts
  std::string lora_name;

  template <class A>
  void fields(A& a) {
    a(request_id, prompt_token_ids, output_token_ids, sampling_params, eos_token_ids, priority, arrival_time,
      cache_salt, lora_name);
  }
};

struct EngineCoreOutput {
  RequestId request_id = 0;
  std::vector<int32_t> new_token_ids;
  std::vector<PositionLogprobs> new_logprobs;  // one for each new token, when asked for
  FinishReason finish_reason = FinishReason::kNone;
  std::optional<int32_t> stop_token_id;  // the stop token that ended it, unless it was end-of-sequence
  int32_t num_cached_tokens = 0;
  std::string error;

  template <class A>
  void fields(A& a) {
    a(request_id, new_token_ids, new_logprobs, finish_reason, stop_token_id, num_cached_tokens, error);
  }
};

struct SchedulerStats {
  uint64_t num_steps = 0;
  int32_t num_running_reqs = 0;
  int32_t num_waiting_reqs = 0;
  int32_t num_free_blocks = 0;
  int32_t num_total_blocks = 0;  // usable ones: block 0 is not counted
  uint64_t num_preemptions = 0;
  uint64_t num_scheduled_tokens = 0;
  uint64_t prefix_cache_queries = 0;  // tokens looked up
  uint64_t prefix_cache_hits = 0;     // tokens found
  uint64_t num_generation_tokens = 0;

  template <class A>
  void fields(A& a) {
    a(num_steps, num_running_reqs, num_waiting_reqs, num_free_blocks, num_total_blocks, num_preemptions,
      num_scheduled_tokens, prefix_cache_queries, prefix_cache_hits, num_generation_tokens);
  }
};

// All that one step produced. `engine_error` says that the engine core has ended, and why.
struct EngineCoreOutputs {
  std::vector<EngineCoreOutput> outputs;
  SchedulerStats scheduler_stats;
  std::string engine_error;

  template <class A>
  void fields(A& a) {
    a(outputs, scheduler_stats, engine_error);
  }
};

}  // namespace quire
