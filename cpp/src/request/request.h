// A request as the deciding half sees it: token ids, how far they are computed, and what they hold.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "messages/engine_core_messages.h"
#include "messages/scheduler_output.h"
#include "request/block_hash.h"

namespace quire {

enum class RequestStatus : uint8_t {
  kWaiting,
  kWaitingForStructuredOutputGrammar,
  kWaitingForRemoteKvs,
  kRunning,
  kPreempted,
  // Everything from here on is finished.
  kFinishedStopped,
  kFinishedLengthCapped,
  kFinishedAborted,
  kFinishedIgnored,
  kFinishedError,
};

constexpr bool is_finished(RequestStatus status) { return status >= RequestStatus::kFinishedStopped; }
FinishReason finish_reason(RequestStatus status);
const char* status_name(RequestStatus status);

// Owned by the Scheduler; used on its thread only.
class Request {
 public:
  // `block_size` is the number of tokens that share a block hash.
  Request(EngineCoreRequest&& request, int32_t block_size);

  RequestId id() const { return id_; }
  const SamplingParams& sampling_params() const { return sampling_params_; }
  const std::vector<int32_t>& eos_token_ids() const { return eos_token_ids_; }
  int32_t priority() const { return priority_; }
  double arrival_time() const { return arrival_time_; }
  uint64_t arrival_order = 0;  // breaks ties between equal arrival times; set by the Scheduler

  // Prompt, then output.
  std::span<const int32_t> token_ids() const { return token_ids_; }
  std::span<const int32_t> prompt_token_ids() const { return token_ids().first(num_prompt_tokens_); }
  std::span<const int32_t> output_token_ids() const { return token_ids().subspan(num_prompt_tokens_); }
  int32_t num_prompt_tokens() const { return num_prompt_tokens_; }
  int32_t num_tokens() const { return static_cast<int32_t>(token_ids_.size()); }
  int32_t num_output_tokens() const { return num_tokens() - num_prompt_tokens_; }
  // What the request must catch up with: known tokens, drafts, and tokens a step in flight will sample.
  int32_t num_tokens_with_spec() const {
    return num_tokens() + static_cast<int32_t>(spec_token_ids.size()) + num_output_placeholders;
  }

  void append_output_token(int32_t token_id);

  // One for each full block of known tokens, chained.
  std::span<const BlockHash> block_hashes() const { return block_hashes_; }

  RequestStatus status = RequestStatus::kWaiting;
  int32_t num_computed_tokens = 0;      // keys and values in the cache, or being written by a step in flight
  int32_t num_output_placeholders = 0;  // tokens that steps in flight will sample
  int32_t num_steps_in_flight = 0;
  int32_t num_cached_tokens = -1;  // prefix hit when first scheduled; -1 before
  int32_t num_preemptions = 0;
  bool known_to_workers = false;
  std::vector<int32_t> spec_token_ids;  // drafts for the next step

  // The blocks this request holds, per group; changed by the KVCacheManager only.
  BlockIdsByGroup block_ids;
  std::vector<int32_t> num_cached_blocks;  // per group: how many of them are findable by hash

 private:
  void update_block_hashes();

  RequestId id_;
  SamplingParams sampling_params_;
  std::vector<int32_t> eos_token_ids_;
  int32_t priority_;
  double arrival_time_;
  std::vector<int32_t> token_ids_;
  int32_t num_prompt_tokens_;
  int32_t block_size_;
  BlockHash extra_keys_hash_;  // LoRA name and cache salt, the root of the chain
  std::vector<BlockHash> block_hashes_;
};

}  // namespace quire
