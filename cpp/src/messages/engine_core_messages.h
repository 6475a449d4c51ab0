// What crosses between a front end and the engine core: token ids in, token ids out. Text stays outside.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "messages/archive.h"
#include "quire/kv_connector.h"
#include "quire/kv_events.h"
#include "quire/request_output.h"
#include "quire/sampling_params.h"
#include "util/rare.h"
#include "util/shared.h"

namespace quire {

// Names a request inside one engine. The front end maps it to the caller's own string.
using RequestId = uint64_t;
// An adapter, for as long as an engine lives: none that comes later has the same.
using LoraId = uint64_t;

template <class A>
void visit_fields(A& a, JsonObject& object) {
  a(object.text);
}
template <class A>
void visit_fields(A& a, SamplingParams& params) {
  for_each_field(kSamplingParamsFields, [&](const auto& field) { a(params.*field.member); });
}

template <class A>
void visit_fields(A& a, StructuredOutputsParams& params) {
  for_each_field(kStructuredOutputsFields, [&](const auto& field) { a(params.*field.member); });
}
template <class A>
void visit_fields(A& a, JsonText& json) {
  a(json.text);
}

template <class A>
void visit_fields(A& a, KVCacheEvent& event) {
  a(event.kind, event.group, event.block_hashes, event.parent_block_hash, event.token_ids, event.block_size,
    event.lora_id, event.lora_name, event.cache_salt, event.kv_cache_spec_kind,
    event.kv_cache_spec_sliding_window);
}
template <class A>
void visit_fields(A& a, MultiModalFeature& feature) {
  a(feature.mm_hash, feature.offset, feature.num_embeds);
}
template <class A>
void visit_fields(A& a, Logprob& logprob) {
  a(logprob.token_id, logprob.logprob, logprob.rank);
}

// What SamplingParams::bad_words are as tokens: sequences that the output may not come to hold.
using BadWords = Shared<std::vector<std::vector<int32_t>>>;
// The longest of them: of a longer one the door says so.
inline constexpr size_t kMaxBadWordTokens = 128;

// Validated and tokenized: the engine core trusts it.
struct EngineCoreRequest {
  RequestId request_id = 0;
  Shared<std::vector<int32_t>> prompt_token_ids;  // at least one
  std::vector<int32_t> output_token_ids;          // generated earlier, perhaps by another engine
  // All completions of a prompt share them: max_tokens is within max_model_len, n and seed are not looked at.
  Shared<SamplingParams> sampling_params;
  uint64_t seed = 0;                           // of this completion
  Shared<std::vector<int32_t>> eos_token_ids;  // empty when they are to be ignored
  BadWords bad_words_token_ids;
  // Of each token of the prompt, given those before it, and this many likeliest ones.
  std::optional<int32_t> num_prompt_logprobs;
  int32_t priority = 0;         // a lower value is served first
  double arrival_time = 0.0;    // seconds, of the front end's clock
  double deadline = 0.0;        // same clock: aborted when it has passed; 0: none
  double queue_deadline = 0.0;  // same clock: aborted when it waits for its first step then; 0: none
  std::string user;             // whose share it counts to, under the "fair" policy
  std::string cache_salt;       // prefix blocks are shared only between equal salts
  std::string lora_name;
  LoraId lora_id = 0;  // what computes with it besides the model; 0: nothing
  // Tells what has this name from what had it, or has it elsewhere: keys and values of others are not its
  // own.
  std::string lora_fingerprint;
  // Keeps the adapter where the workers find it; of this process.
  std::shared_ptr<const void> lora_use = {};
  std::vector<MultiModalFeature> mm_features;  // by offset, not overlapping
  // A request whose tokens begin this prompt, and whose keys and values it takes over by reference; 0: none.
  RequestId fork_of = 0;
  // When it has all its output it keeps its blocks until all forks of it have begun, or it is finished by
  // name.
  uint8_t awaits_forks = 0;
  int32_t lora_int_id = 0;  // the caller's number of the adapter, for KV events

  template <class A>
  void fields(A& a) {
    a(request_id, prompt_token_ids, output_token_ids, sampling_params, seed, eos_token_ids,
      bad_words_token_ids, num_prompt_logprobs, priority, arrival_time, deadline, queue_deadline, user,
      cache_salt, lora_name, lora_id, lora_fingerprint, mm_features, fork_of, awaits_forks, lora_int_id);
  }
};

// What a step gave one request. Its tokens are a range of EngineCoreOutputs::token_ids.
struct EngineCoreOutput {
  RequestId request_id = 0;
  uint32_t first_token = 0;
  int32_t num_tokens = 0;
  double first_scheduled_time = 0.0;  // the clock of arrival_time; 0: it never was
  int32_t num_cached_tokens = 0;
  std::optional<int32_t> stop_token_id;  // the stop token that ended it, unless it was end-of-sequence
  FinishReason finish_reason = FinishReason::kNone;
  Rare<std::vector<PositionLogprobs>> new_logprobs;  // one for each new token, when asked for
  Rare<std::string> error;

  template <class A>
  void fields(A& a) {
    a(request_id, first_token, num_tokens, new_logprobs, finish_reason, stop_token_id, num_cached_tokens,
      first_scheduled_time, error);
  }
};

// The few requests of a step that asked for log-probabilities of their prompts, and have their first token.
struct PromptLogprobsOutput {
  uint32_t output_index = 0;                // of EngineCoreOutputs::outputs
  std::vector<PositionLogprobs> positions;  // one for each token of the prompt, the first empty

  template <class A>
  void fields(A& a) {
    a(output_index, positions);
  }
};

struct SchedulerStats {
  uint64_t num_steps = 0;
  int32_t num_running_reqs = 0;
  int32_t num_waiting_reqs = 0;    // those that wait for a grammar or remote keys and values included
  int64_t num_waiting_tokens = 0;  // prompt tokens of waiting requests, not yet computed
  int64_t num_prefill_tokens = 0;  // prompt tokens of running requests, not yet computed
  int32_t num_free_blocks = 0;
  int32_t num_used_blocks = 0;   // by this engine's requests
  int32_t num_total_blocks = 0;  // usable ones: block 0 is not counted
  int64_t num_wasted_slots = 0;  // of blocks in use: slots that hold no token
  int64_t num_used_slots = 0;    // of blocks in use: all slots
  uint64_t num_preemptions = 0;
  uint64_t num_scheduled_tokens = 0;
  uint64_t prefix_cache_queries = 0;        // tokens looked up
  uint64_t prefix_cache_hits = 0;           // tokens found
  uint64_t external_prefix_cache_hits = 0;  // tokens that a KV connector had besides
  uint64_t num_generation_tokens = 0;
  uint64_t num_spec_tokens = 0;           // drafts verified
  uint64_t num_accepted_spec_tokens = 0;  // drafts accepted
  uint64_t num_added_reqs = 0;            // ever
  uint64_t num_added_tokens = 0;          // prompt tokens ever added
  uint64_t num_unknown_aborts = 0;        // aborts of ids that are not there
  uint64_t num_expired_reqs = 0;          // ended by their deadline
  // Steps of a worker that has captured graphs, by how it ran them (CudagraphMode).
  uint64_t num_full_graph_steps = 0;
  uint64_t num_piecewise_graph_steps = 0;
  uint64_t num_eager_steps = 0;
  double time_per_step = 0.0;          // seconds that a step takes besides its tokens, lately
  double time_per_token = 0.0;         // seconds that each token of a step adds, lately
  double mean_service_time = 0.0;      // seconds from first scheduled to finished, lately
  uint64_t num_expert_tokens = 0;      // ExpertMeter's, like the next
  double expert_load_imbalance = 0.0;  // 0 while no request runs

  template <class A>
  void fields(A& a) {
    a(num_steps, num_running_reqs, num_waiting_reqs, num_waiting_tokens, num_prefill_tokens, num_free_blocks,
      num_used_blocks, num_total_blocks, num_wasted_slots, num_used_slots, num_preemptions,
      num_scheduled_tokens, prefix_cache_queries, prefix_cache_hits, external_prefix_cache_hits,
      num_generation_tokens, num_spec_tokens, num_accepted_spec_tokens, num_added_reqs, num_added_tokens,
      num_unknown_aborts, num_expired_reqs, num_full_graph_steps, num_piecewise_graph_steps, num_eager_steps,
      time_per_step, time_per_token, mean_service_time, num_expert_tokens, expert_load_imbalance);
  }
};

// Requests that run with an adapter.
struct RunningLora {
  LoraId lora_id = 0;
  int32_t num_reqs = 0;

  template <class A>
  void fields(A& a) {
    a(lora_id, num_reqs);
  }
};

// All that one step produced. `engine_error` says that the engine core has ended, and why. The buffers of one
// that is used again keep their memory.
struct EngineCoreOutputs {
  std::vector<EngineCoreOutput> outputs;
  std::vector<int32_t> token_ids;
  std::vector<PromptLogprobsOutput> prompt_logprobs;
  std::vector<KVCacheEvent> kv_events;  // when they are asked for
  SchedulerStats scheduler_stats;
  std::vector<RunningLora> running_loras;  // after the step; each adapter once
  double timestamp = 0.0;  // when the step had ended, of the clock of arrival_time; 0: there was none
  std::string engine_error;

  void clear() {
    timestamp = 0.0;
    outputs.clear();
    token_ids.clear();
    prompt_logprobs.clear();
    kv_events.clear();
    running_loras.clear();
    engine_error.clear();
  }
  std::span<const int32_t> new_token_ids(const EngineCoreOutput& output) const {
    return std::span(token_ids).subspan(output.first_token, static_cast<size_t>(output.num_tokens));
  }

  template <class A>
  void fields(A& a) {
    a(outputs, token_ids, prompt_logprobs, kv_events, scheduler_stats, running_loras, timestamp,
      engine_error);
  }
};

}  // namespace quire
