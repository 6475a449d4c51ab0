// Requests come, change state and go; what the scheduler tells of itself.
#include <algorithm>
#include <functional>
#include <utility>

#include "scheduler/scheduler.h"
#include "util/check.h"

namespace quire {

Scheduler::Scheduler(const SchedulerConfig& config, const KVCacheConfig& kv_cache_config,
                     SchedulerParts parts)
    : config_(config),
      parts_(std::move(parts)),
      kv_cache_manager_(kv_cache_config, {config.enable_prefix_caching, config.enable_kv_cache_events,
                                          parts_.kv_arena, parts_.wake}),
      encoder_cache_manager_(config.encoder_cache_size),
      loras_(config.max_loras),
      waiting_(make_request_queue(
          config.policy,
          [this](const Request& request) { return kv_cache_manager_.count_computed_tokens(request); })),
      watermark_blocks_(static_cast<int32_t>(config.watermark *
                                             static_cast<float>(kv_cache_manager_.num_usable_blocks() + 1))),
      padding_drafts_(static_cast<size_t>(config.num_padding_drafts), -1) {
  stats_.num_total_blocks = kv_cache_manager_.num_usable_blocks();
}

Scheduler::~Scheduler() = default;

void Scheduler::add_request(EngineCoreRequest&& message) {
  const RequestId id = message.request_id;
  if (requests_.contains(id) || held_.contains(id)) {
    throw InvalidArgument(str("request id ", id, " is already in use"));
  }
  std::unique_ptr<StructuredOutputGrammar> grammar;
  if (parts_.structured_output_manager) grammar = parts_.structured_output_manager->make_grammar(message);
  auto request = std::make_unique<Request>(std::move(message), kv_cache_manager_.hash_block_size(),
                                           parts_.hash_seed, std::vector<BlockHash>(), &totals_);
  num_grammars_ += grammar != nullptr;
  request->set_grammar(std::move(grammar));
  add(std::move(request));
}

void Scheduler::add(std::unique_ptr<Request> owned, bool waits_for_grammar) {
  Request& request = *owned;
  const RequestId id = request.id();
  requests_.emplace(id, std::move(owned));
  const bool is_fork = request.fork_of() != 0;
  const auto parent = requests_.find(request.fork_of());
  if (parent != requests_.end() && parent->second->status() == RequestStatus::kWaitingForForks) {
    parent->second->add_fork();
    request.arrive(parent->second->arrival_order(), config_.long_prefill_token_threshold);
  } else {
    request.end_fork();
    request.arrive(next_arrival_order_++, config_.long_prefill_token_threshold);
  }
  if (!is_fork) {
    ++stats_.num_added_reqs;
    stats_.num_added_tokens += static_cast<uint64_t>(request.num_prompt_tokens());
  }
  if (request.num_output_tokens() >= request.sampling_params().max_tokens ||
      request.num_tokens() >= config_.max_model_len) {
    ended_on_arrival_.emplace_back(id, "");
  }
  for (const MultiModalFeature& feature : request.mm_features()) {
    int32_t limit = std::min(config_.max_num_encoder_input_tokens, config_.encoder_cache_size);
    if (config_.disable_chunked_mm_input) limit = std::min(limit, config_.max_num_batched_tokens);
    if (feature.num_embeds <= limit) continue;
    ended_on_arrival_.emplace_back(
        id, str("a multimodal input has ", feature.num_embeds, " embeddings, a step can take ", limit));
    break;
  }
  if (request.deadline() > 0) add_deadline(request);
  const bool is_compiled =
      !request.grammar() || request.grammar()->state() == StructuredOutputGrammar::State::kReady;
  if (!is_compiled || waits_for_grammar) {
    request.wait_for_grammar();
    waiting_for_grammar_.push_back(&request);
  } else {
    request.enqueue();
    waiting_->add(request);
  }
}

// Those of requests that have gone stay until they pass, or are more than all others.
void Scheduler::add_deadline(const Request& request) {
  if (deadlines_.size() > 2 * requests_.size() + 64) {
    std::erase_if(deadlines_, [this](const auto& entry) { return !requests_.contains(entry.second); });
    std::make_heap(deadlines_.begin(), deadlines_.end(), std::greater<>());
  }
  deadlines_.emplace_back(request.deadline(), request.id());
  std::push_heap(deadlines_.begin(), deadlines_.end(), std::greater<>());
}

bool Scheduler::finish_request(RequestId id, RequestStatus status) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) {
    ++stats_.num_unknown_aborts;
    return false;
  }
  finish(*found->second, status);
  finish_forked();
  drop_finished_if_idle();
  return true;
}

void Scheduler::advance(double now, EngineCoreOutputs& outputs) {
  now_ = now;
  for (auto& [id, error] : ended_on_arrival_) {
    const auto found = requests_.find(id);
    if (found == requests_.end()) continue;
    const auto status = error.empty() ? RequestStatus::kFinishedIgnored : RequestStatus::kFinishedError;
    report_finish(*found->second, status, std::move(error), outputs);
  }
  ended_on_arrival_.clear();
  while (!deadlines_.empty() && deadlines_.front().first <= now) {
    const auto [deadline, id] = deadlines_.front();
    std::pop_heap(deadlines_.begin(), deadlines_.end(), std::greater<>());
    deadlines_.pop_back();
    const auto found = requests_.find(id);
    if (found == requests_.end() || found->second->deadline() != deadline) continue;
    ++stats_.num_expired_reqs;
    const double seconds = deadline - found->second->arrival_time();
    report_finish(*found->second, RequestStatus::kFinishedAborted,
                  str("deadline_ms ", static_cast<int64_t>(seconds * 1000 + 0.5), " has passed"), outputs);
  }
  grammars_ready_.clear();
  for (size_t i = 0; i < waiting_for_grammar_.size();) {
    Request& request = *waiting_for_grammar_[i];
    if (!request.grammar()) {  // of a replay, which is told
      ++i;
      continue;
    }
    const auto state = request.grammar()->state();
    if (state == StructuredOutputGrammar::State::kCompiling) {
      ++i;
    } else if (state == StructuredOutputGrammar::State::kFailed) {
      report_finish(request, RequestStatus::kFinishedError, request.grammar()->error(), outputs);
    } else {
      grammars_ready_.push_back(request.id());
      take_from_grammar(request);
    }
  }
  finish_forked();
  drop_finished_if_idle();
}

void Scheduler::take_from_grammar(Request& request) {
  std::erase(waiting_for_grammar_, &request);
  request.enqueue();
  waiting_->add(request);
}

void Scheduler::finish(Request& request, RequestStatus status) {
  bool hold = false;
  switch (request.status()) {
    case RequestStatus::kRunning:
      running_has_left_ = true;
      end_lora(request);
      break;
    case RequestStatus::kWaitingForStructuredOutputGrammar: std::erase(waiting_for_grammar_, &request); break;
    case RequestStatus::kWaitingForForks: break;
    case RequestStatus::kWaitingForRemoteKvs:
      // The blocks are being written from outside: they are free when that has ended.
      hold = true;
      break;
    default: waiting_->remove(request);
  }
  if (parts_.kv_connector && !hold && request.num_slots() > 0) {
    KVConnectorRequest view = connector_view(request);
    if (status == RequestStatus::kFinishedError) view.num_computed_tokens = 0;
    hold = parts_.kv_connector->request_finished(view, connector_blocks(request));
  }
  end_fork(request);
  if (!hold) kv_cache_manager_.free(request);
  for (const MultiModalFeature& feature : request.mm_features())
    encoder_cache_manager_.release(request.id(), feature.mm_hash);
  request.finish(status);
  num_grammars_ -= request.grammar() != nullptr;
  if (request.known_to_workers()) finished_req_ids_.push_back(request.id());
  // Those that stay for forks are one token each of something longer.
  if (request.first_scheduled_time() >= 0 && !request.awaits_forks()) {
    const double seconds = now_ - request.first_scheduled_time();
    stats_.mean_service_time +=
        (stats_.mean_service_time > 0 ? 0.1 : 1.0) * (seconds - stats_.mean_service_time);
  }
  auto entry = requests_.extract(request.id());
  if (hold) {
    held_.emplace(request.id(), std::move(entry.mapped()));
  } else {
    finished_.push_back(std::move(entry.mapped()));
  }
  if (requests_.empty()) {
    kv_cache_manager_.begin_schedule();
    kv_cache_manager_.end_schedule();
  }
}

void Scheduler::stay(Request& request) {
  if (request.is_running()) {
    running_has_left_ = true;
    end_lora(request);
  } else {
    waiting_->remove(request);  // it was preempted while its last token was on its way
  }
  request.wait_for_forks();
}

const Request* Scheduler::find_parent(const Request& fork) const {
  const Request* parent = fork.fork_of() == 0 ? nullptr : find_request(fork.fork_of());
  const bool is_there = parent && parent->status() == RequestStatus::kWaitingForForks &&
                        parent->num_slots() > 0 && parent->num_computed_tokens() < fork.num_tokens();
  return is_there ? parent : nullptr;
}

void Scheduler::end_fork(Request& fork) {
  const RequestId id = fork.end_fork();
  if (id == 0) return;
  const auto parent = requests_.find(id);
  if (parent != requests_.end() && parent->second->drop_fork()) forked_.push_back(id);
}

// Not while a step is scheduled: what it copies of their blocks has to stay mapped until then.
void Scheduler::finish_forked() {
  for (size_t i = 0; i < forked_.size(); ++i) {
    const auto parent = requests_.find(forked_[i]);
    if (parent != requests_.end()) finish(*parent->second, RequestStatus::kFinishedLengthCapped);
  }
  forked_.clear();
}

bool Scheduler::take_blocks_kept_for_forks() {
  if (totals_.num_waiting_for_forks == 0) return false;
  Request* youngest = nullptr;
  for (const auto& [id, request] : requests_) {
    if (request->status() != RequestStatus::kWaitingForForks || request->num_slots() == 0) continue;
    if (!youngest ||
        std::pair(request->arrival_order(), id) > std::pair(youngest->arrival_order(), youngest->id()))
      youngest = request.get();
  }
  if (youngest) start_over(*youngest);
  return youngest != nullptr;
}

void Scheduler::report_finish(Request& request, RequestStatus status, std::string error,
                              EngineCoreOutputs& outputs) {
  EngineCoreOutput& output = outputs.outputs.emplace_back();
  output.request_id = request.id();
  output.first_token = static_cast<uint32_t>(outputs.token_ids.size());
  output.num_cached_tokens = std::max(request.num_cached_tokens(), 0);
  output.first_scheduled_time = std::max(request.first_scheduled_time(), 0.0);
  output.finish_reason = finish_reason(status);
  output.error = std::move(error);
  finish(request, status);
}

// A request in the queue gives up what was loaded for it.
void Scheduler::start_over(Request& queued) {
  kv_cache_manager_.free(queued);
  queued.rewind(0);
}

// Finished requests leave the running list at once, and memory when no step in flight knows them.
void Scheduler::drop_finished() {
  if (running_has_left_) {
    std::erase_if(running_, [](const Request* request) { return !request->is_running(); });
    running_has_left_ = false;
  }
  if (!finished_.empty()) {
    std::erase_if(finished_, [](const auto& request) { return request->num_steps_in_flight() == 0; });
  }
}

// No step may follow, and what they hold, an adapter in use, others wait for.
void Scheduler::drop_finished_if_idle() {
  if (in_flight_.empty()) drop_finished();
}

KVConnectorRequest Scheduler::connector_view(const Request& request) {
  connector_hashes_.clear();
  for (const BlockHash& hash : request.block_hashes()) connector_hashes_.push_back({hash.high, hash.low});
  KVConnectorRequest view;
  view.request_id = request.id();
  view.token_ids = request.token_ids();
  view.num_prompt_tokens = request.num_prompt_tokens();
  view.lora_name = request.lora_name();
  view.lora_fingerprint = request.lora_fingerprint();
  view.cache_salt = request.cache_salt();
  view.mm_features = request.mm_features();
  view.block_hashes = connector_hashes_;
  view.num_computed_tokens = std::min(request.num_computed_tokens(), request.num_tokens());
  return view;
}

KVConnectorBlocks Scheduler::connector_blocks(const Request& request) {
  connector_blocks_.clear();
  for (const RequestBlocks& held : request.blocks()) connector_blocks_.emplace_back(held.ids);
  return connector_blocks_;
}

std::vector<RequestId> Scheduler::unfinished_request_ids() const {
  std::vector<RequestId> ids;
  ids.reserve(requests_.size());
  for (const auto& [id, request] : requests_) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  return ids;
}

const Request* Scheduler::find_request(RequestId id) const {
  const auto found = requests_.find(id);
  return found == requests_.end() ? nullptr : found->second.get();
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = stats_;
  stats.num_running_reqs = static_cast<int32_t>(running_.size());
  stats.num_waiting_reqs = static_cast<int32_t>(waiting_->size() + waiting_for_grammar_.size()) +
                           totals_.num_waiting_for_remote_kvs;
  stats.num_waiting_tokens = totals_.num_waiting_tokens;
  stats.num_prefill_tokens = totals_.num_prefill_tokens;
  stats.num_free_blocks = kv_cache_manager_.num_free_blocks();
  stats.num_used_blocks = kv_cache_manager_.num_used_blocks();
  stats.num_used_slots = kv_cache_manager_.num_used_slots();
  stats.num_wasted_slots = totals_.num_wasted_slots;
  stats.time_per_step = step_time_model_.time_per_step();
  stats.time_per_token = step_time_model_.time_per_token();
  return stats;
}

namespace {

void require(bool ok, const auto&... parts) {
  if (!ok) throw InvalidArgument(str(parts...));
}

}  // namespace

void SchedulerConfig::validate(int32_t block_size) const {
  require(max_num_batched_tokens >= block_size, "max_num_batched_tokens ", max_num_batched_tokens,
          " is less than block_size ", block_size, ": raise it");
  require(max_num_batched_tokens >= max_num_seqs, "max_num_batched_tokens ", max_num_batched_tokens,
          " is less than max_num_seqs ", max_num_seqs,
          ": not every request could run; raise it, or lower max_num_seqs");
  require(long_prefill_token_threshold <= max_num_batched_tokens, "long_prefill_token_threshold ",
          long_prefill_token_threshold, " is above max_num_batched_tokens ", max_num_batched_tokens,
          ": it would never apply; lower it, or set 0");
  require(enable_chunked_prefill || max_num_batched_tokens >= max_model_len, "max_num_batched_tokens ",
          max_num_batched_tokens, " is less than max_model_len ", max_model_len,
          ": raise it, or set enable_chunked_prefill");
  require(max_num_partial_prefills <= max_num_seqs, "max_num_partial_prefills ", max_num_partial_prefills,
          " is above max_num_seqs ", max_num_seqs, ": lower it, or set 0 for no limit");
  require(max_num_partial_prefills == 0 || max_long_partial_prefills <= max_num_partial_prefills,
          "max_long_partial_prefills ", max_long_partial_prefills, " is above max_num_partial_prefills ",
          max_num_partial_prefills, ": lower it");
  require(max_long_partial_prefills == 0 || long_prefill_token_threshold > 0, "max_long_partial_prefills ",
          max_long_partial_prefills, " needs long_prefill_token_threshold, which says what is long");
}

}  // namespace quire
