// A request as the deciding half sees it: token ids, how far they are computed, and what they hold.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "messages/block_ids.h"
#include "messages/engine_core_messages.h"
#include "request/block_hash.h"
#include "request/structured_output.h"

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

// What a request holds of one KV cache group; changed by the KVCacheManager only.
struct RequestBlocks {
  std::vector<BlockId> ids;  // kNullBlock where nothing is kept: behind a window, or between two states
  int32_t num_cached = 0;    // leading blocks that were made findable by hash, or never will be
  int32_t num_skipped = 0;   // leading blocks that were given back: nothing will read them again
  int32_t num_sent = 0;      // leading blocks that the workers know
  int32_t num_exact_tokens =
      0;  // state groups: a step ended here, so the block before it holds this very state
};

// Owned by the Scheduler; used on its thread only.
class Request {
 public:
  // `hash_block_size` is the number of tokens that share a block hash, `hash_seed` what all names of the
  // engine depend on. A replayed request has hashes, which are then taken as they are, but not the tokens
  // they came from.
  Request(EngineCoreRequest&& request, int32_t hash_block_size, const HashSeed& hash_seed = {},
          std::vector<BlockHash> recorded_hashes = {});

  RequestId id() const { return id_; }
  const SamplingParams& sampling_params() const { return sampling_params_; }
  const std::vector<int32_t>& eos_token_ids() const { return eos_token_ids_; }
  const std::vector<MultiModalFeature>& mm_features() const { return mm_features_; }
  const std::string& lora_name() const { return lora_name_; }
  const std::string& cache_salt() const { return cache_salt_; }
  const std::string& user() const { return user_; }
  int32_t priority() const { return priority_; }
  double arrival_time() const { return arrival_time_; }
  double deadline() const { return deadline_; }  // 0: none
  uint64_t arrival_order = 0;  // set by the Scheduler: requests are served in the order they came to it
  int32_t num_overtaken = 0;   // by younger requests, under the "cache_aware" policy

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

  // Does not allocate once make_room() was called.
  void append_output_token(int32_t token_id);
  // Room for the longest output, when the request begins to run: a waiting one costs no more than its prompt.
  void make_room();

  // One for each full block of known tokens, chained.
  std::span<const BlockHash> block_hashes() const { return block_hashes_; }
  // What the first block's hash is chained to.
  const BlockHash& root_hash() const { return root_hash_; }

  RequestStatus status = RequestStatus::kWaiting;
  int32_t num_computed_tokens = 0;      // keys and values in the cache, or being written by a step in flight
  int32_t num_output_placeholders = 0;  // tokens that steps in flight will sample
  int32_t num_steps_in_flight = 0;
  int32_t num_tokens_in_flight = 0;  // the last of num_computed_tokens, which those steps compute
  int32_t num_prefill_tokens = 0;    // known tokens when it last began to run: up to there it is a prefill
  int32_t num_cached_tokens = -1;    // prefix hit when first scheduled; -1 before
  int32_t num_preemptions = 0;
  int32_t num_queued_tokens = 0;    // what it adds to the count of waiting tokens, while it is queued
  int32_t num_counted_prefill = 0;  // what it adds to the count of prefill tokens to compute, while it runs
  int32_t num_charged_tokens = 0;   // leading tokens that its user has been charged for, under "fair"
  int32_t num_results_to_drop = 0;  // of steps in flight that computed on keys and values that were not there
  bool known_to_workers = false;
  bool is_partial_prefill = false;      // runs, and a part of its prefill is left for later steps
  bool is_long_prefill = false;         // longer than long_prefill_token_threshold when it was queued
  std::vector<int32_t> spec_token_ids;  // drafts for the next step
  double first_scheduled_time = -1.0;   // the clock of arrival_time; -1 before

  std::unique_ptr<StructuredOutputGrammar> grammar;  // null: none

  // With a KV connector: tokens whose keys and values come, or came, from outside.
  int32_t num_external_tokens = 0;
  bool kv_load_failed = false;  // a load in flight failed: num_external_tokens is what is left of it

  // Per group.
  std::vector<RequestBlocks> blocks;
  bool has_unsent_blocks = false;  // some that the workers do not know
  int32_t next_cache_at = 0;       // no block can become findable before this many tokens are computed
  int32_t num_slots = 0;           // tokens that the blocks held can take, in every group
  int32_t num_wasted_slots = 0;    // of those, over all groups: slots without a computed token

 private:
  void update_block_hashes();

  RequestId id_;
  SamplingParams sampling_params_;
  std::vector<int32_t> eos_token_ids_;
  std::vector<MultiModalFeature> mm_features_;
  std::string lora_name_;
  std::string cache_salt_;
  std::string user_;
  int32_t priority_;
  double arrival_time_;
  double deadline_;
  std::vector<int32_t> token_ids_;
  int32_t num_prompt_tokens_;
  int32_t hash_block_size_;
  BlockHashChain
      hash_chain_;  // of the blocks that have hashes; begins with the seed, LoRA name and cache salt
  BlockHash root_hash_;
  std::vector<BlockHash> block_hashes_;
  std::vector<BlockHash> recorded_hashes_;
  size_t next_feature_ = 0;  // the first multimodal input that ends beyond the hashed blocks
};

}  // namespace quire
