// What a step computes, from the scheduler to the workers. Flat buffers, so that one that is used again
// allocates nothing: the i-th entry of every per-request list belongs to scheduled_reqs[i].
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "messages/block_ids.h"
#include "messages/engine_core_messages.h"
#include "messages/kv_cache_spec.h"

namespace quire {

using StepId = uint64_t;

// A request the workers have not seen: in full. Its blocks are in `new_block_ids`, like any other's.
struct NewRequestData {
  RequestId request_id = 0;
  Shared<std::vector<int32_t>> prompt_token_ids;
  std::vector<int32_t> output_token_ids;  // generated before this engine saw the request
  Shared<SamplingParams> sampling_params;
  uint64_t seed = 0;  // of its draws
  Shared<std::vector<int32_t>> eos_token_ids;
  BadWords bad_words_token_ids;
  std::optional<int32_t> num_prompt_logprobs;
  std::vector<MultiModalFeature> mm_features;
  LoraId lora_id = 0;  // 0: none

  template <class A>
  void fields(A& a) {
    a(request_id, prompt_token_ids, output_token_ids, sampling_params, seed, eos_token_ids,
      bad_words_token_ids, num_prompt_logprobs, mm_features, lora_id);
  }
};

// What this step computes of one request.
struct ScheduledRequest {
  RequestId request_id = 0;
  int32_t num_tokens = 0;               // to compute, drafts included
  int32_t num_computed_tokens = 0;      // already in the cache: where this step starts
  int32_t num_spec_tokens = 0;          // drafts to verify, the last of num_tokens
  uint8_t samples = 0;                  // these are the last known tokens: sample what follows them
  uint8_t is_new = 0;                   // in scheduled_new_reqs too, in the same order
  uint8_t resumed_from_preemption = 0;  // its new blocks replace the old ones
  uint8_t reserved = 0;                 // keeps the bytes of the struct defined, which is hashed

  bool operator==(const ScheduledRequest&) const = default;
  template <class A>
  void fields(A& a) {
    a(request_id, num_tokens, num_computed_tokens, num_spec_tokens, samples, is_new, resumed_from_preemption,
      reserved);
  }
};

// One encoder run: the mm_features[input_index] of a request.
struct ScheduledEncoderInput {
  RequestId request_id = 0;
  int32_t input_index = 0;

  template <class A>
  void fields(A& a) {
    a(request_id, input_index);
  }
};

// Blocks [first_block, first_block + num_blocks) of a group get memory, or lose it, before the step runs.
struct KVExtent {
  int32_t group = 0;
  BlockId first_block = 0;
  int32_t num_blocks = 0;
  uint8_t map = 0;  // 1: get it; 0: lose it

  template <class A>
  void fields(A& a) {
    a(group, first_block, num_blocks, map);
  }
};

// A block whose content goes to another one of its group, after the extents changed and before anything is
// computed.
struct KVBlockCopy {
  int32_t group = 0;
  BlockId from = 0, to = 0;

  bool operator==(const KVBlockCopy&) const = default;
  template <class A>
  void fields(A& a) {
    a(group, from, to);
  }
};

// An adapter comes into a slot, instead of the one that lay there, before the step runs.
struct LoraLoad {
  LoraId lora_id = 0;
  int32_t slot = 0;
  int32_t reserved = 0;  // keeps the bytes of the struct defined

  bool operator==(const LoraLoad&) const = default;
  template <class A>
  void fields(A& a) {
    a(lora_id, slot, reserved);
  }
};

struct SchedulerOutput {
  StepId step_id = 0;
  std::vector<ScheduledRequest> scheduled_reqs;  // every request of this step, in scheduling order
  std::vector<NewRequestData> scheduled_new_reqs;
  BlockIdLists new_block_ids;           // a row for each of scheduled_reqs: appended to what it holds
  std::vector<int32_t> spec_token_ids;  // num_spec_tokens of each, concatenated
  int32_t total_num_scheduled_tokens = 0;
  std::vector<ScheduledEncoderInput> scheduled_encoder_inputs;
  std::vector<std::string> free_encoder_mm_hashes;  // encoder outputs to forget
  std::vector<RequestId> preempted_req_ids;
  std::vector<RequestId> finished_req_ids;  // since the last step: forget them
  std::vector<KVExtent> kv_extents;         // changes of memory, in order
  std::vector<KVBlockCopy> kv_copies;       // the last blocks of forked requests
  std::vector<LoraLoad> lora_loads;         // those of requests that begin to run in this step
  std::string kv_connector_metadata;        // opaque: from the connector's scheduler side to its worker side

  // Nothing to compute, but something the workers must do.
  bool has_side_effects() const { return !kv_extents.empty() || !kv_connector_metadata.empty(); }

  template <class A>
  void fields(A& a) {
    a(step_id, scheduled_reqs, scheduled_new_reqs, new_block_ids, spec_token_ids, total_num_scheduled_tokens,
      scheduled_encoder_inputs, free_encoder_mm_hashes, preempted_req_ids, finished_req_ids, kv_extents,
      kv_copies, lora_loads, kv_connector_metadata);
  }
};

// Masks for structured output, one bit a token, for the requests that have a grammar: one for each token that
// the step samples of them, in order.
struct GrammarOutput {
  std::vector<uint32_t>
      result_indices;            // places in scheduled_reqs, ascending; those of a request follow each other
  std::vector<int32_t> bitmask;  // [result_indices.size(), ceil(V / 32)]

  template <class A>
  void fields(A& a) {
    a(result_indices, bitmask);
  }
};

}  // namespace quire
