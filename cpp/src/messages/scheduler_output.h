// One step's plan, from the scheduler to the workers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "messages/engine_core_messages.h"
#include "messages/kv_cache_spec.h"

namespace quire {

using StepId = uint64_t;
using BlockIdsByGroup = std::vector<std::vector<BlockId>>;

// A request the workers have not seen: in full.
struct NewRequestData {
  RequestId request_id = 0;
  std::vector<int32_t> prompt_token_ids;
  std::vector<int32_t> output_token_ids;  // generated before this engine saw the request
  SamplingParams sampling_params;
  std::vector<int32_t> eos_token_ids;
  BlockIdsByGroup block_ids;
  int32_t num_computed_tokens = 0;
  std::string lora_name;

  template <class A>
  void fields(A& a) {
    a(request_id, prompt_token_ids, output_token_ids, sampling_params, eos_token_ids, block_ids,
      num_computed_tokens, lora_name);
  }
};

// A request the workers know: what changed.
struct CachedRequestData {
  RequestId request_id = 0;
  bool resumed_from_preemption = false;  // new_block_ids then replace the old ones
  BlockIdsByGroup new_block_ids;         // appended, per group
  int32_t num_computed_tokens = 0;

  template <class A>
  void fields(A& a) {
    a(request_id, resumed_from_preemption, new_block_ids, num_computed_tokens);
  }
};

struct ScheduledTokens {
  RequestId request_id = 0;
  int32_t num_tokens = 0;
  bool samples = false;                 // these are the last known tokens: sample what follows them
  std::vector<int32_t> spec_token_ids;  // drafts to verify, the last of num_tokens

  template <class A>
  void fields(A& a) {
    a(request_id, num_tokens, samples, spec_token_ids);
  }
};

struct SchedulerOutput {
  StepId step_id = 0;
  std::vector<NewRequestData> scheduled_new_reqs;
  std::vector<CachedRequestData> scheduled_cached_reqs;
  std::vector<ScheduledTokens> num_scheduled_tokens;  // every request of this step, in scheduling order
  int32_t total_num_scheduled_tokens = 0;
  std::vector<int32_t> num_common_prefix_blocks;  // per group
  std::vector<RequestId> preempted_req_ids;
  std::vector<RequestId> finished_req_ids;  // since the last step: forget them

  template <class A>
  void fields(A& a) {
    a(step_id, scheduled_new_reqs, scheduled_cached_reqs, num_scheduled_tokens, total_num_scheduled_tokens,
      num_common_prefix_blocks, preempted_req_ids, finished_req_ids);
  }
};

// Masks for structured output, one bit a token, for the requests that have a grammar.
struct GrammarOutput {
  std::vector<RequestId> request_ids;
  std::vector<int32_t> bitmask;  // [request_ids.size(), ceil(V / 32)]

  template <class A>
  void fields(A& a) {
    a(request_ids, bitmask);
  }
};

}  // namespace quire
