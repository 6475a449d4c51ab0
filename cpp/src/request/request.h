// A request as the deciding half sees it: token ids, how far they are computed, and what they hold.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "messages/engine_core_messages.h"
#include "messages/recording.h"
#include "messages/scheduler_output.h"
#include "request/block_hash.h"
#include "request/held_blocks.h"
#include "request/request_totals.h"
#include "request/structured_output.h"

namespace quire {

enum class RequestStatus : uint8_t {
  kWaiting,
  kWaitingForStructuredOutputGrammar,
  kWaitingForRemoteKvs,
  kRunning,
  kPreempted,
  kWaitingForForks,  // has all its output, and blocks that others will take over
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

// What becomes of the results that steps in flight will bring.
enum class InFlightResults : uint8_t {
  kCount,  // they are taken as they come
  kDrop,   // they were computed on keys and values that were not there
};

// A request and how far it is. What is counted is private: whatever happens to a request is one call, which
// keeps its counts, and its part of the engine's totals, true.
//
//   0 <= num_computed_tokens <= num_tokens_with_spec, but for the drafts that a step in flight verifies
//   0 <= num_output_placeholders <= num_steps_in_flight
//
// Owned by the Scheduler; used on its thread only.
class alignas(64) Request {
 public:
  // `hash_block_size` is the number of tokens that share a block hash, `hash_seed` what all names of the
  // engine depend on. A replayed request has hashes, which are then taken as they are, but not the tokens
  // they came from. `totals`, if given, outlives the request; it counts there from enqueue() on.
  Request(EngineCoreRequest&& request, int32_t hash_block_size, const HashSeed& hash_seed = {},
          std::vector<BlockHash> recorded_hashes = {}, RequestTotals* totals = nullptr);

  RequestId id() const { return id_; }
  const SamplingParams& sampling_params() const { return *sampling_params_; }
  const std::vector<int32_t>& eos_token_ids() const { return *eos_token_ids_; }
  const std::vector<MultiModalFeature>& mm_features() const { return mm_features_; }
  const std::string& lora_name() const { return lora_name_; }
  const std::string& lora_fingerprint() const { return lora_fingerprint_; }
  LoraId lora_id() const { return lora_id_; }  // 0: none
  int32_t lora_int_id() const { return lora_int_id_; }
  const std::shared_ptr<const void>& lora_use() const { return lora_use_; }
  // Whether its adapter has to stay in its slot.
  bool holds_lora() const { return holds_lora_; }
  void hold_lora(bool holds) {
    holds_lora_ = holds;
    quiet_until_ = 0;
  }
  const std::string& cache_salt() const { return cache_salt_; }
  const std::string& user() const { return user_; }
  int32_t priority() const { return priority_; }
  double arrival_time() const { return arrival_time_; }
  double deadline() const { return deadline_; }              // 0: none
  uint64_t arrival_order() const { return arrival_order_; }  // requests are served in the order they came
  bool is_long_prefill() const { return is_long_prefill_; }  // when it came
  StructuredOutputGrammar* grammar() const { return grammar_.get(); }  // null: none

  // Prompt, then output. Until it runs, the prompt as it came: one with whoever else holds it.
  std::span<const int32_t> token_ids() const { return token_ids_; }
  std::span<const int32_t> prompt_token_ids() const { return token_ids().first(num_prompt_tokens_); }
  std::span<const int32_t> output_token_ids() const { return token_ids().subspan(num_prompt_tokens_); }
  int32_t num_prompt_tokens() const { return num_prompt_tokens_; }
  int32_t num_tokens() const { return static_cast<int32_t>(token_ids_.size()); }
  int32_t num_output_tokens() const { return num_tokens() - num_prompt_tokens_; }
  // Of its prompt and the longest output that it asks for.
  int32_t max_num_tokens() const { return max_num_tokens_; }
  // False: the token is neither end-of-sequence nor a stop token.
  bool may_stop_at(int32_t token_id) const { return ((stop_filter_ >> (token_id & 63)) & 1) != 0; }
  // What the request must catch up with: known tokens, drafts, and tokens a step in flight will sample.
  int32_t num_tokens_with_spec() const {
    return num_tokens() + static_cast<int32_t>(spec_token_ids_.size()) + num_output_placeholders_;
  }
  // One for each full block of known tokens, chained.
  std::span<const BlockHash> block_hashes() const { return block_hashes_; }
  // What the first block's hash is chained to.
  const BlockHash& root_hash() const { return root_hash_; }

  RequestStatus status() const { return status_; }
  bool is_running() const { return status_ == RequestStatus::kRunning; }
  // Waits in the queue, rather than for a grammar or for keys and values from outside.
  bool is_queued() const {
    return status_ == RequestStatus::kWaiting || status_ == RequestStatus::kPreempted;
  }
  bool is_finished() const { return quire::is_finished(status_); }
  // Keys and values in the cache, or being written by a step in flight.
  int32_t num_computed_tokens() const { return num_computed_tokens_; }
  // Tokens that steps in flight will sample.
  int32_t num_output_placeholders() const { return num_output_placeholders_; }
  int32_t num_steps_in_flight() const { return num_steps_in_flight_; }
  // Tokens that steps in flight compute.
  int32_t num_tokens_in_flight() const { return num_tokens_in_flight_; }
  // Known tokens when it last began to run: up to there it is a prefill.
  int32_t num_prefill_tokens() const { return num_prefill_tokens_; }
  // Runs, with a part of the prefill left for later steps.
  bool is_partial_prefill() const { return counted_.num_prefill_tokens > 0; }
  // The prefix hit when it was first scheduled; -1 before.
  int32_t num_cached_tokens() const { return num_cached_tokens_; }
  // Tokens whose keys and values come, or came, from a KV connector.
  int32_t num_external_tokens() const { return num_external_tokens_; }
  int32_t num_preemptions() const { return num_preemptions_; }
  int32_t num_overtaken() const { return num_overtaken_; }  // by younger ones, under "cache_aware"
  bool kv_load_failed() const { return kv_load_failed_; }   // num_external_tokens is what is left of it
  bool known_to_workers() const { return known_to_workers_; }
  double first_scheduled_time() const { return first_scheduled_time_; }  // clock of arrival_time; -1 before
  // The prompt's log-probabilities are not all computed, so it is computed whole, whatever is cached.
  bool skips_reading_prefix_cache() const {
    return wants_prompt_logprobs_ && prompt_logprobs_->num_tokens < num_prompt_tokens_ - 1;
  }
  bool wants_prompt_logprobs() const { return wants_prompt_logprobs_; }
  // Of a step's results, its tokens are all that there is to do something with.
  bool is_plain() const { return !has_grammar_or_features_ && !wants_prompt_logprobs_; }
  // The request that it takes keys and values over from when it begins to run; 0: none.
  RequestId fork_of() const { return fork_of_; }
  // Whether it keeps its blocks for others when it has all its output.
  bool awaits_forks() const { return awaits_forks_; }
  std::span<const int32_t> spec_token_ids() const { return spec_token_ids_; }  // drafts for the next step

  // The request comes to the engine.
  void arrive(uint64_t arrival_order, int32_t long_prefill_token_threshold);
  // Before it waits for anything. It waits for the grammar first, unless that is ready.
  void set_grammar(std::unique_ptr<StructuredOutputGrammar> grammar);
  void wait_for_grammar() { set_status(RequestStatus::kWaitingForStructuredOutputGrammar); }
  // The request waits to be scheduled, from now on.
  void enqueue() { set_status(RequestStatus::kWaiting); }
  // A younger one was served first.
  void overtake() { ++num_overtaken_; }

  // The KV connector brings the keys and values of `num_external_tokens` after its first
  // `num_computed_tokens`.
  void begin_load(int32_t num_computed_tokens, int32_t num_external_tokens);
  // No more than the first `num_tokens` are good, of what is there and what comes.
  void fail_load(int32_t num_tokens);
  // What came counts as computed; the request is queued again.
  void end_load();

  // The request begins to run at the time `now`, with its first `num_computed_tokens` tokens computed; of
  // those, `num_external_tokens` come from outside with its first step. Makes room for the longest output, so
  // that nothing that follows allocates: a waiting request costs no more than its prompt.
  void run(int32_t num_computed_tokens, int32_t num_external_tokens, double now);
  // Drafts for the next step.
  void set_spec_token_ids(std::span<const int32_t> drafts) {
    spec_token_ids_.assign(drafts.begin(), drafts.end());
    quiet_until_ = 0;
  }
  // Starts bringing what a step reads of the request, and what it writes of its tokens.
  void prefetch() const {
    for (int line = 0; line < 2; ++line)
      __builtin_prefetch(reinterpret_cast<const char*>(this) + 64 * line, 1);
  }
  void prefetch_next_token() const {
    __builtin_prefetch(token_ids_.data() + token_ids_.size(), 1);
    if (num_tokens() + 1 < next_hash_at_) return;
    __builtin_prefetch(held_.groups().data());
    __builtin_prefetch(&hash_chain_, 1);
    __builtin_prefetch(&block_hashes_, 1);
    __builtin_prefetch(block_hashes_.data() + block_hashes_.size(), 1);
    __builtin_prefetch(token_ids_.data() + token_ids_.size() + 1 - static_cast<size_t>(hash_block_size_));
  }

  // Whether its next step is a decode like the one before: one token, in blocks that it holds and the workers
  // know, of which none becomes findable.
  bool is_quiet() const {
    return num_computed_tokens_ < quiet_until_ &&
           num_computed_tokens_ + 1 == num_tokens() + num_output_placeholders_ &&
           num_tokens() < next_cache_at_;
  }
  // For a request that decodes: nothing else may be due before it has computed so many tokens. Whatever
  // happens to it besides decodes ends that.
  void stay_quiet_until(int32_t num_computed_tokens) { quiet_until_ = num_computed_tokens; }
  // begin_step of one token, while it is quiet.
  void begin_quiet_step(ScheduledRequest& scheduled);
  // A step computes the next `num_new_tokens`: says in `scheduled` what is the request's own, and appends
  // the drafts that it verifies to `spec_token_ids`; others are forgotten.
  void begin_step(int32_t num_new_tokens, ScheduledRequest& scheduled, std::vector<int32_t>& spec_token_ids);
  // The workers will hear of it with this step. False when they know it already.
  bool tell_workers() { return !std::exchange(known_to_workers_, true); }
  // The step begun last is not run after all; the request is preempted next.
  void take_back_step(const ScheduledRequest& scheduled);
  // The oldest step in flight has returned. False when its results do not count.
  bool end_step(const ScheduledRequest& scheduled);
  // What a step computes that the user was not charged for yet; now the user is.
  struct Charge {
    int32_t num_prefill_tokens = 0, num_decode_tokens = 0;
  };
  Charge charge(const ScheduledRequest& scheduled);
  void append_output_token(int32_t token_id);
  // A step that has ended computed prompt log-probabilities, perhaps none; they are wanted.
  void take_prompt_logprobs(const ScheduledRequest& scheduled, std::vector<PositionLogprobs> positions);
  // All of them, once: from now on none are wanted.
  std::vector<PositionLogprobs> give_prompt_logprobs();

  // Goes back to its first `num_tokens` tokens, if it is further: what follows is computed (again), and
  // drafts are forgotten. Blocks are the KVCacheManager's to take.
  void rewind(int32_t num_tokens, InFlightResults results = InFlightResults::kCount);
  // To the beginning, and into the queue. Tokens on their way still count when they come.
  void preempt();
  void finish(RequestStatus status) { set_status(status); }

  // It has all its output; forks of it have come, or will.
  void wait_for_forks() { set_status(RequestStatus::kWaitingForForks); }
  void add_fork() { ++num_forks_; }
  // One of them has begun to run, or has gone. True when it was the last one.
  bool drop_fork() { return --num_forks_ == 0; }
  // It has begun to run, or goes, and is a fork no more. Returns what it was a fork of; 0: nothing.
  RequestId end_fork() { return std::exchange(fork_of_, 0); }

  // One for each group of layers, or none before the first blocks were given.
  std::span<const RequestBlocks> blocks() const { return held_.groups(); }
  HeldBlocks& held() { return held_; }
  // The KVCacheManager's: no block can become findable before this many tokens are computed.
  int32_t next_cache_at() const { return next_cache_at_; }
  void set_next_cache_at(int32_t num_tokens) { next_cache_at_ = num_tokens; }
  // Tokens that the blocks held can take, in every group.
  int32_t num_slots() const { return num_slots_; }
  // The KVCacheManager's: that, and the sum over the `num_groups` groups whose slots can be wasted.
  void set_slots(int32_t num_slots, int32_t sum, int32_t num_groups);

  // In full, for workers that do not know it.
  NewRequestData new_request_data() const;
  // Everything but the content, for the flight recorder.
  RecordedRequest record() const;
  // Everything but the blocks, which the KVCacheManager restores after this. Throws InvalidArgument for
  // counts that no request can have. Grammars and what a KV connector does are not part of it.
  void save(RequestSnapshot& out) const;
  void restore(const RequestSnapshot& snapshot);

 private:
  void update_block_hashes();
  void make_room();
  void own_token_ids(size_t num_tokens);
  void set_status(RequestStatus status);
  void take_spec_tokens(int32_t num_drafts, ScheduledRequest& scheduled,
                        std::vector<int32_t>& spec_token_ids);

  // What the request adds to the totals.
  struct Counted {
    int32_t num_waiting_tokens = 0, num_prefill_tokens = 0;
  };
  void recount();
  void count_wasted_slots() {
    const int32_t wasted = std::max(sum_of_slots_ - num_slot_groups_ * num_computed_tokens_, 0);
    if (totals_) totals_->num_wasted_slots += wasted - counted_wasted_slots_;
    counted_wasted_slots_ = wasted;
  }

  // What every step reads and changes comes first: two cache lines.
  RequestId id_;
  RequestTotals* totals_;
  std::span<const int32_t> token_ids_;  // of prompt_token_ids_, or of
  std::vector<int32_t> own_token_ids_;  // prompt and output, once there is, or will be, output
  uint64_t stop_filter_ = 0;            // a bit for each token that may end it, by the last bits of its id

  double first_scheduled_time_ = -1.0;
  RequestStatus status_ = RequestStatus::kWaiting;
  bool known_to_workers_ = false;
  bool is_long_prefill_ = false;
  bool kv_load_failed_ = false;
  bool holds_lora_ = false;
  bool wants_prompt_logprobs_ = false;  // whether there are prompt_logprobs_
  bool has_grammar_or_features_ = false;
  bool awaits_forks_;
  int32_t max_num_tokens_;
  int32_t next_hash_at_ = 0;  // known tokens that fill the next block
  int32_t next_cache_at_ = 0;
  int32_t num_computed_tokens_ = 0;
  int32_t num_output_placeholders_ = 0;
  int32_t num_steps_in_flight_ = 0;
  int32_t num_tokens_in_flight_ = 0;
  int32_t num_results_to_drop_ = 0;  // of steps in flight
  int32_t quiet_until_ = 0;
  int32_t num_slot_groups_ = 0;
  int32_t counted_wasted_slots_ = 0;  // what it adds to the totals
  int32_t num_cached_tokens_ = -1;

  Counted counted_;
  int32_t num_prompt_tokens_;
  int32_t num_slots_ = 0;
  int32_t sum_of_slots_ = 0;
  HeldBlocks held_;
  int32_t num_charged_tokens_ = 0;  // leading tokens that its user has been charged for, under "fair"
  int32_t num_external_tokens_ = 0;
  int32_t num_preemptions_ = 0;
  int32_t num_overtaken_ = 0;
  int32_t num_prefill_tokens_ = 0;
  std::vector<int32_t> spec_token_ids_;
  Shared<SamplingParams> sampling_params_;
  Shared<std::vector<int32_t>> eos_token_ids_;
  int32_t hash_block_size_;
  uint64_t arrival_order_ = 0;

  Shared<std::vector<int32_t>> prompt_token_ids_;
  BadWords bad_words_token_ids_;
  // Few requests want them, and the others are to stay small.
  struct PromptLogprobs {
    int32_t count = 0;                        // likeliest tokens for each
    int32_t num_tokens = 0;                   // leading tokens whose logits were computed
    std::vector<PositionLogprobs> positions;  // so far, from the second token on
  };
  std::unique_ptr<PromptLogprobs> prompt_logprobs_;  // null: not wanted, or given
  uint64_t seed_;
  std::vector<MultiModalFeature> mm_features_;
  std::string lora_name_, lora_fingerprint_;
  LoraId lora_id_;
  int32_t lora_int_id_;
  std::shared_ptr<const void> lora_use_;
  std::string cache_salt_;
  std::string user_;
  RequestId fork_of_;
  int32_t num_forks_ = 0;  // of it, that have not begun to run
  int32_t priority_;
  double arrival_time_;
  double deadline_;
  std::unique_ptr<StructuredOutputGrammar> grammar_;
  // Hashes of full blocks; begins with the seed, LoRA name and cache salt.
  BlockHashChain hash_chain_;
  BlockHash root_hash_;
  std::vector<BlockHash> block_hashes_;
  std::vector<BlockHash> recorded_hashes_;
  size_t next_feature_ = 0;  // the first multimodal input that ends beyond the hashed blocks
};

// Inline, since every request of every step goes through it.
inline void Request::begin_step(int32_t num_new_tokens, ScheduledRequest& scheduled,
                                std::vector<int32_t>& spec_token_ids) {
  scheduled.request_id = id_;
  scheduled.num_tokens = num_new_tokens;
  scheduled.num_computed_tokens = num_computed_tokens_;
  const int32_t num_known = num_tokens() + num_output_placeholders_;
  num_computed_tokens_ += num_new_tokens;
  if (!spec_token_ids_.empty()) take_spec_tokens(num_computed_tokens_ - num_known, scheduled, spec_token_ids);
  if (num_computed_tokens_ >= num_known) {
    scheduled.samples = 1;
    ++num_output_placeholders_;
  }
  ++num_steps_in_flight_;
  num_tokens_in_flight_ += num_new_tokens;
  if (is_partial_prefill()) {
    recount();
  } else {
    count_wasted_slots();
  }
}

inline void Request::begin_quiet_step(ScheduledRequest& scheduled) {
  scheduled.request_id = id_;
  scheduled.num_tokens = 1;
  scheduled.num_computed_tokens = num_computed_tokens_++;
  scheduled.samples = 1;
  ++num_output_placeholders_;
  ++num_steps_in_flight_;
  ++num_tokens_in_flight_;
  // Its slots are more than it has computed, in every group.
  counted_wasted_slots_ -= num_slot_groups_;
  if (totals_) totals_->num_wasted_slots -= num_slot_groups_;
}

inline bool Request::end_step(const ScheduledRequest& scheduled) {
  --num_steps_in_flight_;
  num_tokens_in_flight_ -= scheduled.num_tokens;
  if (num_results_to_drop_ > 0) {
    --num_results_to_drop_;
    return false;
  }
  num_output_placeholders_ -= scheduled.samples != 0;
  return !is_finished();  // perhaps while the step was in flight
}

}  // namespace quire
