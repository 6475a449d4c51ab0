#include "request/request.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "quire/error.h"
#include "util/str.h"

namespace quire {
namespace {

// What blocks of a prefix are named by beside its tokens. What had a name before is not what has it now.
std::string lora_key(const std::string& name, const std::string& fingerprint) {
  return fingerprint.empty() ? name : name + '\0' + fingerprint;
}

int32_t saturated_sum(int32_t a, int32_t b) {
  return static_cast<int32_t>(std::min<int64_t>(int64_t{a} + b, std::numeric_limits<int32_t>::max()));
}

}  // namespace

FinishReason finish_reason(RequestStatus status) {
  switch (status) {
    case RequestStatus::kFinishedStopped: return FinishReason::kStop;
    case RequestStatus::kFinishedLengthCapped:
    case RequestStatus::kFinishedIgnored: return FinishReason::kLength;
    case RequestStatus::kFinishedAborted: return FinishReason::kAbort;
    case RequestStatus::kFinishedError: return FinishReason::kError;
    default: return FinishReason::kNone;
  }
}

const char* status_name(RequestStatus status) {
  switch (status) {
    case RequestStatus::kWaiting: return "WAITING";
    case RequestStatus::kWaitingForStructuredOutputGrammar: return "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR";
    case RequestStatus::kWaitingForRemoteKvs: return "WAITING_FOR_REMOTE_KVS";
    case RequestStatus::kRunning: return "RUNNING";
    case RequestStatus::kPreempted: return "PREEMPTED";
    case RequestStatus::kWaitingForForks: return "WAITING_FOR_FORKS";
    case RequestStatus::kFinishedStopped: return "FINISHED_STOPPED";
    case RequestStatus::kFinishedLengthCapped: return "FINISHED_LENGTH_CAPPED";
    case RequestStatus::kFinishedAborted: return "FINISHED_ABORTED";
    case RequestStatus::kFinishedIgnored: return "FINISHED_IGNORED";
    case RequestStatus::kFinishedError: return "FINISHED_ERROR";
  }
  return "?";
}

Request::Request(EngineCoreRequest&& request, int32_t hash_block_size, const HashSeed& hash_seed,
                 std::vector<BlockHash> recorded_hashes, RequestTotals* totals)
    : id_(request.request_id),
      totals_(totals),
      wants_prompt_logprobs_(request.num_prompt_logprobs.has_value()),
      awaits_forks_(request.awaits_forks != 0),
      max_num_tokens_(saturated_sum(static_cast<int32_t>(request.prompt_token_ids->size()),
                                    request.sampling_params->max_tokens)),
      num_prompt_tokens_(static_cast<int32_t>(request.prompt_token_ids->size())),
      sampling_params_(std::move(request.sampling_params)),
      eos_token_ids_(std::move(request.eos_token_ids)),
      hash_block_size_(hash_block_size),
      prompt_token_ids_(std::move(request.prompt_token_ids)),
      bad_words_token_ids_(std::move(request.bad_words_token_ids)),
      seed_(request.seed),
      mm_features_(std::move(request.mm_features)),
      lora_name_(std::move(request.lora_name)),
      lora_fingerprint_(std::move(request.lora_fingerprint)),
      lora_id_(request.lora_id),
      lora_int_id_(request.lora_int_id),
      lora_use_(std::move(request.lora_use)),
      cache_salt_(std::move(request.cache_salt)),
      user_(std::move(request.user)),
      fork_of_(request.fork_of),
      priority_(request.priority),
      arrival_time_(request.arrival_time),
      deadline_(request.deadline),
      hash_chain_(hash_seed, lora_key(lora_name_, lora_fingerprint_), cache_salt_),
      root_hash_(hash_chain_.name()),
      recorded_hashes_(std::move(recorded_hashes)) {
  if (request.num_prompt_logprobs) {
    prompt_logprobs_ = std::make_unique<PromptLogprobs>();
    prompt_logprobs_->count = *request.num_prompt_logprobs;
  }
  has_grammar_or_features_ = !mm_features_.empty();
  for (const auto* ids : {&*eos_token_ids_, &sampling_params_->stop_token_ids})
    for (const int32_t id : *ids) stop_filter_ |= uint64_t{1} << (id & 63);
  token_ids_ = *prompt_token_ids_;
  const size_t num_tokens = token_ids_.size() + request.output_token_ids.size();
  block_hashes_.reserve(num_tokens / static_cast<size_t>(hash_block_size_));
  update_block_hashes();
  if (!request.output_token_ids.empty()) own_token_ids(num_tokens);
  for (int32_t id : request.output_token_ids) append_output_token(id);
}

void Request::set_grammar(std::unique_ptr<StructuredOutputGrammar> grammar) {
  grammar_ = std::move(grammar);
  has_grammar_or_features_ = grammar_ || !mm_features_.empty();
}

void Request::arrive(uint64_t arrival_order, int32_t long_prefill_token_threshold) {
  arrival_order_ = arrival_order;
  is_long_prefill_ = long_prefill_token_threshold > 0 && num_tokens() > long_prefill_token_threshold;
}

void Request::set_status(RequestStatus status) {
  if (totals_) {
    totals_->num_waiting_for_remote_kvs += status == RequestStatus::kWaitingForRemoteKvs;
    totals_->num_waiting_for_remote_kvs -= status_ == RequestStatus::kWaitingForRemoteKvs;
    totals_->num_waiting_for_forks += status == RequestStatus::kWaitingForForks;
    totals_->num_waiting_for_forks -= status_ == RequestStatus::kWaitingForForks;
  }
  status_ = status;
  recount();
}

void Request::begin_load(int32_t num_computed_tokens, int32_t num_external_tokens) {
  num_computed_tokens_ = num_computed_tokens;
  num_external_tokens_ = num_external_tokens;
  kv_load_failed_ = false;
  set_status(RequestStatus::kWaitingForRemoteKvs);
}

void Request::fail_load(int32_t num_tokens) {
  num_external_tokens_ = std::min(num_external_tokens_, std::max(num_tokens - num_computed_tokens_, 0));
  num_computed_tokens_ = std::min(num_computed_tokens_, num_tokens);
  kv_load_failed_ = true;
  recount();
}

void Request::end_load() {
  num_computed_tokens_ += num_external_tokens_;
  if (num_computed_tokens_ > 0 && num_cached_tokens_ < 0) num_cached_tokens_ = num_computed_tokens_;
  set_status(num_preemptions_ > 0 ? RequestStatus::kPreempted : RequestStatus::kWaiting);
}

void Request::run(int32_t num_computed_tokens, int32_t num_external_tokens, double now) {
  make_room();
  num_computed_tokens_ = num_computed_tokens;
  num_external_tokens_ = num_external_tokens;
  num_prefill_tokens_ = num_tokens();
  // What a fork takes over was charged for already.
  if (fork_of_ != 0) num_charged_tokens_ = num_prompt_tokens_ - 1;
  if (num_cached_tokens_ < 0) num_cached_tokens_ = num_computed_tokens;
  if (first_scheduled_time_ < 0.0) first_scheduled_time_ = now;
  set_status(RequestStatus::kRunning);
}

void Request::make_room() {
  const size_t num_tokens =
      static_cast<size_t>(num_prompt_tokens_) + static_cast<size_t>(sampling_params_->max_tokens);
  own_token_ids(num_tokens);
  block_hashes_.reserve(num_tokens / static_cast<size_t>(hash_block_size_));
  constexpr size_t kMaxDrafts = 16;
  spec_token_ids_.reserve(kMaxDrafts);
  held_.make_room(num_tokens / static_cast<size_t>(hash_block_size_) + 2);
}

void Request::take_spec_tokens(int32_t num_drafts, ScheduledRequest& scheduled,
                               std::vector<int32_t>& spec_token_ids) {
  scheduled.num_spec_tokens = std::max(num_drafts, 0);
  spec_token_ids.insert(spec_token_ids.end(), spec_token_ids_.begin(),
                        spec_token_ids_.begin() + scheduled.num_spec_tokens);
  spec_token_ids_.clear();
}

void Request::take_back_step(const ScheduledRequest& scheduled) {
  num_output_placeholders_ -= scheduled.samples != 0;
  --num_steps_in_flight_;
  num_tokens_in_flight_ -= scheduled.num_tokens;
  rewind(scheduled.num_computed_tokens);
}

Request::Charge Request::charge(const ScheduledRequest& scheduled) {
  const int32_t end = scheduled.num_computed_tokens + scheduled.num_tokens;
  const int32_t begin = std::clamp(num_charged_tokens_, scheduled.num_computed_tokens, end);
  const int32_t num_prefill = std::clamp(num_prefill_tokens_ - begin, 0, end - begin);
  num_charged_tokens_ = std::max(num_charged_tokens_, end);
  return {num_prefill, end - begin - num_prefill};
}

void Request::rewind(int32_t num_tokens, InFlightResults results) {
  num_computed_tokens_ = std::min(num_computed_tokens_, num_tokens);
  num_external_tokens_ = std::min(num_external_tokens_, num_tokens);
  spec_token_ids_.clear();
  if (results == InFlightResults::kDrop) {
    num_output_placeholders_ = 0;
    num_results_to_drop_ = num_steps_in_flight_;
  }
  recount();
}

void Request::preempt() {
  ++num_preemptions_;
  rewind(0);
  set_status(RequestStatus::kPreempted);
}

void Request::recount() {
  quiet_until_ = 0;
  count_wasted_slots();
  const int32_t num_waiting = is_queued() ? num_tokens() - num_computed_tokens_ : 0;
  const int32_t num_prefill = is_running() ? std::max(num_prefill_tokens_ - num_computed_tokens_, 0) : 0;
  if (totals_) {
    totals_->num_waiting_tokens += num_waiting - counted_.num_waiting_tokens;
    totals_->num_prefill_tokens += num_prefill - counted_.num_prefill_tokens;
    const int32_t more = (num_prefill > 0) - is_partial_prefill();
    totals_->num_partial_prefills += more;
    if (is_long_prefill_) totals_->num_long_partial_prefills += more;
  }
  counted_.num_waiting_tokens = num_waiting;
  counted_.num_prefill_tokens = num_prefill;
}

void Request::set_slots(int32_t num_slots, int32_t sum, int32_t num_groups) {
  num_slots_ = num_slots;
  sum_of_slots_ = sum;
  num_slot_groups_ = num_groups;
  recount();
}

void Request::own_token_ids(size_t num_tokens) {
  own_token_ids_.reserve(num_tokens);
  if (own_token_ids_.empty()) own_token_ids_.assign(token_ids_.begin(), token_ids_.end());
  token_ids_ = own_token_ids_;
}

void Request::append_output_token(int32_t token_id) {
  if (own_token_ids_.size() == own_token_ids_.capacity()) own_token_ids(2 * token_ids_.size() + 1);
  own_token_ids_.push_back(token_id);
  token_ids_ = {token_ids_.data(), own_token_ids_.size()};
  if (num_tokens() >= next_hash_at_) update_block_hashes();
  if (is_queued()) recount();  // it was preempted while this token was on its way
}

void Request::update_block_hashes() {
  const auto block_size = static_cast<size_t>(hash_block_size_);
  const size_t num_full_blocks = token_ids_.size() / block_size;
  while (block_hashes_.size() < num_full_blocks) {
    if (block_hashes_.size() < recorded_hashes_.size()) {
      block_hashes_.push_back(recorded_hashes_[block_hashes_.size()]);
      if (block_hashes_.size() == recorded_hashes_.size()) hash_chain_ = BlockHashChain(block_hashes_.back());
      continue;
    }
    const size_t begin = block_hashes_.size() * block_size;
    hash_chain_.add_block(token_ids().subspan(begin, block_size));
    // Placeholder tokens of two images are equal; their contents are told apart by name and place.
    for (size_t i = next_feature_; i < mm_features_.size(); ++i) {
      const MultiModalFeature& feature = mm_features_[i];
      const auto offset = static_cast<int64_t>(feature.offset) - static_cast<int64_t>(begin);
      if (offset >= hash_block_size_) break;
      hash_chain_.add_key(feature.mm_hash, offset);
      if (offset + feature.num_embeds <= hash_block_size_) next_feature_ = i + 1;
    }
    block_hashes_.push_back(hash_chain_.name());
  }
  next_hash_at_ = static_cast<int32_t>((block_hashes_.size() + 1) * block_size);
}

void Request::take_prompt_logprobs(const ScheduledRequest& scheduled,
                                   std::vector<PositionLogprobs> positions) {
  int32_t& num_tokens = prompt_logprobs_->num_tokens;
  num_tokens = std::max(num_tokens, scheduled.num_computed_tokens + scheduled.num_tokens);
  std::move(positions.begin(), positions.end(), std::back_inserter(prompt_logprobs_->positions));
}

std::vector<PositionLogprobs> Request::give_prompt_logprobs() {
  std::vector<PositionLogprobs> all = std::move(prompt_logprobs_->positions);
  all.emplace(all.begin());  // nothing comes before the first token
  prompt_logprobs_.reset();
  wants_prompt_logprobs_ = false;
  return all;
}

NewRequestData Request::new_request_data() const {
  const auto output = output_token_ids();
  return {id_,
          prompt_token_ids_,
          {output.begin(), output.end()},
          sampling_params_,
          seed_,
          eos_token_ids_,
          bad_words_token_ids_,
          prompt_logprobs_ ? std::optional(prompt_logprobs_->count) : std::nullopt,
          mm_features_,
          lora_id_};
}

RecordedRequest Request::record() const {
  RecordedRequest recorded;
  recorded.request_id = id_;
  recorded.num_prompt_tokens = num_prompt_tokens_;
  recorded.num_output_tokens = num_output_tokens();
  recorded.block_hashes.reserve(block_hashes_.size());
  for (const BlockHash& hash : block_hashes_) recorded.block_hashes.push_back({hash.high, hash.low});
  recorded.max_tokens = sampling_params_->max_tokens;
  recorded.priority = priority_;
  recorded.arrival_time = arrival_time_;
  recorded.deadline = deadline_;
  recorded.user = user_;
  recorded.mm_features = mm_features_;
  recorded.lora_id = lora_id_;
  recorded.waits_for_grammar = status_ == RequestStatus::kWaitingForStructuredOutputGrammar;
  recorded.has_prompt_logprobs = wants_prompt_logprobs_ ? 1 : 0;
  recorded.fork_of = fork_of_;
  recorded.awaits_forks = awaits_forks_ ? 1 : 0;
  return recorded;
}

void Request::save(RequestSnapshot& out) const {
  out.request = record();
  out.num_tokens = num_tokens();
  out.status = static_cast<uint8_t>(status_);
  out.arrival_order = arrival_order_;
  out.num_overtaken = num_overtaken_;
  out.num_computed_tokens = num_computed_tokens_;
  out.num_output_placeholders = num_output_placeholders_;
  out.num_steps_in_flight = num_steps_in_flight_;
  out.num_tokens_in_flight = num_tokens_in_flight_;
  out.num_prefill_tokens = num_prefill_tokens_;
  out.num_cached_tokens = num_cached_tokens_;
  out.num_preemptions = num_preemptions_;
  out.num_results_to_drop = num_results_to_drop_;
  out.num_charged_tokens = num_charged_tokens_;
  out.num_spec_tokens = static_cast<int32_t>(spec_token_ids_.size());
  out.num_external_tokens = num_external_tokens_;
  if (prompt_logprobs_) out.num_logprob_tokens = prompt_logprobs_->num_tokens;
  out.known_to_workers = known_to_workers_;
  out.is_long_prefill = is_long_prefill_;
  out.kv_load_failed = kv_load_failed_;
  out.holds_lora = holds_lora_;
  out.first_scheduled_time = first_scheduled_time_;
  for (const RequestBlocks& held : held_.groups())
    out.blocks.push_back({held.ids, held.num_cached, held.num_skipped, held.num_sent, held.num_exact_tokens});
}

void Request::restore(const RequestSnapshot& s) {
  constexpr int32_t kMaxDrafts = 1 << 16;
  constexpr int32_t kMaxSteps = 1 << 16;
  const bool plausible =
      s.status <= static_cast<uint8_t>(RequestStatus::kFinishedError) && s.num_spec_tokens >= 0 &&
      s.num_spec_tokens < kMaxDrafts && s.num_steps_in_flight >= 0 && s.num_steps_in_flight < kMaxSteps &&
      s.num_output_placeholders >= 0 && s.num_output_placeholders <= s.num_steps_in_flight &&
      s.num_results_to_drop >= 0 && s.num_results_to_drop <= s.num_steps_in_flight &&
      s.num_cached_tokens >= -1 && s.num_computed_tokens >= 0 && s.num_external_tokens >= 0 &&
      s.num_external_tokens <= num_tokens() &&
      s.num_computed_tokens <= num_tokens() + s.num_output_placeholders + s.num_spec_tokens + kMaxDrafts;
  if (!plausible) throw InvalidArgument(str("snapshot: impossible counts of request ", id_));
  arrival_order_ = s.arrival_order;
  num_overtaken_ = s.num_overtaken;
  num_computed_tokens_ = s.num_computed_tokens;
  num_output_placeholders_ = s.num_output_placeholders;
  num_steps_in_flight_ = s.num_steps_in_flight;
  num_tokens_in_flight_ = s.num_tokens_in_flight;
  num_prefill_tokens_ = s.num_prefill_tokens;
  num_cached_tokens_ = s.num_cached_tokens;
  num_preemptions_ = s.num_preemptions;
  num_results_to_drop_ = s.num_results_to_drop;
  num_charged_tokens_ = s.num_charged_tokens;
  spec_token_ids_.assign(static_cast<size_t>(s.num_spec_tokens), 0);
  num_external_tokens_ = s.num_external_tokens;
  if (prompt_logprobs_) prompt_logprobs_->num_tokens = s.num_logprob_tokens;
  known_to_workers_ = s.known_to_workers != 0;
  is_long_prefill_ = s.is_long_prefill != 0;
  kv_load_failed_ = s.kv_load_failed != 0;
  holds_lora_ = s.holds_lora != 0;
  first_scheduled_time_ = s.first_scheduled_time;
  set_status(static_cast<RequestStatus>(s.status));
}

}  // namespace quire
