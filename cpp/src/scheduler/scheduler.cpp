#include "scheduler/scheduler.h"

#include <algorithm>

#include "util/check.h"

namespace quire {

Scheduler::Scheduler(const SchedulerConfig& config, const KVCacheConfig& kv_cache_config)
    : config_(config),
      kv_cache_manager_(kv_cache_config, config.enable_prefix_caching),
      waiting_(make_request_queue(config.policy)) {
  stats_.num_total_blocks = kv_cache_manager_.num_usable_blocks();
}

void Scheduler::add_request(EngineCoreRequest&& message) {
  const RequestId id = message.request_id;
  auto request = std::make_unique<Request>(std::move(message), kv_cache_manager_.block_size());
  request->arrival_order = next_arrival_order_++;
  const auto [entry, inserted] = requests_.try_emplace(id, std::move(request));
  if (!inserted) throw InvalidArgument(str("request id ", id, " is already in use"));
  waiting_->add(*entry->second);
}

bool Scheduler::finish_request(RequestId id, RequestStatus status) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return false;
  finish(*found->second, status);
  return true;
}

void Scheduler::schedule(SchedulerOutput& out) {
  out.step_id = next_step_id_;
  out.scheduled_new_reqs.clear();
  out.scheduled_cached_reqs.clear();
  out.num_scheduled_tokens.clear();
  out.preempted_req_ids.clear();
  out.finished_req_ids.clear();
  out.total_num_scheduled_tokens = 0;

  int32_t token_budget = config_.max_num_batched_tokens;
  schedule_running(out, token_budget);
  // A preemption means that blocks are short: a new request would only take them from older ones.
  if (out.preempted_req_ids.empty()) schedule_waiting(out, token_budget);

  if (running_.empty()) {
    out.num_common_prefix_blocks.assign(1, 0);
  } else {
    kv_cache_manager_.count_common_prefix_blocks(*running_.front(), static_cast<int32_t>(running_.size()),
                                                 out.num_common_prefix_blocks);
  }
  if (out.total_num_scheduled_tokens == 0) return;
  ++next_step_id_;
  out.finished_req_ids.swap(finished_req_ids_);
  ++stats_.num_steps;
  stats_.num_scheduled_tokens += static_cast<uint64_t>(out.total_num_scheduled_tokens);
}

// How far the request may go this step; 0 when it has nothing to do before a step in flight comes back.
int32_t Scheduler::num_tokens_to_schedule(const Request& request, int32_t token_budget) const {
  const int32_t num_left = request.num_tokens_with_spec() - request.num_computed_tokens;
  // The last token allowed is already on its way.
  if (request.num_output_placeholders > 0 &&
      (request.num_output_tokens() + request.num_output_placeholders >=
           request.sampling_params().max_tokens ||
       request.num_tokens() + request.num_output_placeholders >= config_.max_model_len)) {
    return 0;
  }
  int32_t num_new_tokens = num_left;
  if (config_.long_prefill_token_threshold > 0) {
    num_new_tokens = std::min(num_new_tokens, config_.long_prefill_token_threshold);
  }
  if (!config_.enable_chunked_prefill && num_new_tokens > token_budget) return 0;
  return std::min(num_new_tokens, token_budget);
}

void Scheduler::schedule_running(SchedulerOutput& out, int32_t& token_budget) {
  for (size_t i = 0; i < running_.size() && token_budget > 0; ++i) {
    Request& request = *running_[i];
    const int32_t num_new_tokens = num_tokens_to_schedule(request, token_budget);
    if (num_new_tokens <= 0) continue;
    // Victims at or before this place, which move what follows forward.
    size_t num_removed = 0;
    bool allocated = false;
    while (true) {
      allocated = kv_cache_manager_.allocate_slots(request, num_new_tokens, nullptr, new_block_ids_);
      if (allocated) break;
      Request& victim = choose_victim();
      const auto place = std::find(running_.begin(), running_.end(), &victim) - running_.begin();
      if (static_cast<size_t>(place) + num_removed <= i) ++num_removed;
      unplan(victim, out);
      preempt(victim, out);
      if (&victim == &request) break;
    }
    if (allocated) plan(request, num_new_tokens, new_block_ids_, /*was_waiting=*/false, out);
    token_budget = config_.max_num_batched_tokens - out.total_num_scheduled_tokens;
    i -= num_removed;  // may wrap below zero, and back with the loop's increment
  }
}

void Scheduler::schedule_waiting(SchedulerOutput& out, int32_t& token_budget) {
  while (token_budget > 0 && running_.size() < static_cast<size_t>(config_.max_num_seqs)) {
    Request* request = waiting_->front();
    // A preempted request whose last token is still being sampled cannot be recomputed before it is known.
    if (!request || request->num_output_placeholders > 0) break;
    kv_cache_manager_.find_computed_blocks(*request, computed_);
    request->num_computed_tokens = computed_.num_tokens;
    const int32_t num_new_tokens = num_tokens_to_schedule(*request, token_budget);
    request->num_computed_tokens = 0;
    if (num_new_tokens <= 0 ||
        !kv_cache_manager_.allocate_slots(*request, num_new_tokens, &computed_, new_block_ids_)) {
      break;
    }
    waiting_->remove(*request);
    request->num_computed_tokens = computed_.num_tokens;
    if (request->num_cached_tokens < 0) {
      request->num_cached_tokens = computed_.num_tokens;
      stats_.prefix_cache_queries += static_cast<uint64_t>(request->num_tokens());
      stats_.prefix_cache_hits += static_cast<uint64_t>(computed_.num_tokens);
    }
    running_.push_back(request);
    request->status = RequestStatus::kRunning;
    plan(*request, num_new_tokens, new_block_ids_, /*was_waiting=*/true, out);
    token_budget -= num_new_tokens;
  }
}

Request& Scheduler::choose_victim() const {
  QUIRE_CHECK(!running_.empty());
  Request* victim = running_.front();
  for (Request* request : running_) {
    if (waiting_->preempt_before(*request, *victim)) victim = request;
  }
  return *victim;
}

void Scheduler::preempt(Request& request, SchedulerOutput& out) {
  kv_cache_manager_.free(request);
  request.status = RequestStatus::kPreempted;
  request.num_computed_tokens = 0;
  request.spec_token_ids.clear();
  ++request.num_preemptions;
  ++stats_.num_preemptions;
  running_.erase(std::find(running_.begin(), running_.end(), &request));
  waiting_->add_preempted(request);
  out.preempted_req_ids.push_back(request.id());
}

// Takes back what this very plan gave a request that is then preempted.
void Scheduler::unplan(Request& request, SchedulerOutput& out) {
  const auto planned = std::find_if(out.num_scheduled_tokens.begin(), out.num_scheduled_tokens.end(),
                                    [&](const ScheduledTokens& s) { return s.request_id == request.id(); });
  if (planned == out.num_scheduled_tokens.end()) return;
  kv_cache_manager_.uncache_blocks(request, request.num_computed_tokens - planned->num_tokens);
  out.total_num_scheduled_tokens -= planned->num_tokens;
  if (planned->samples) --request.num_output_placeholders;
  --request.num_steps_in_flight;
  out.num_scheduled_tokens.erase(planned);
  std::erase_if(out.scheduled_cached_reqs,
                [&](const CachedRequestData& cached) { return cached.request_id == request.id(); });
}

void Scheduler::plan(Request& request, int32_t num_new_tokens, BlockIdsByGroup& new_block_ids,
                     bool was_waiting, SchedulerOutput& out) {
  ScheduledTokens scheduled{request.id(), num_new_tokens, false, {}};
  if (!request.spec_token_ids.empty()) {
    const int32_t num_before_drafts =
        request.num_tokens() + request.num_output_placeholders - request.num_computed_tokens;
    const int32_t num_drafts = std::max(num_new_tokens - num_before_drafts, 0);
    scheduled.spec_token_ids.assign(request.spec_token_ids.begin(),
                                    request.spec_token_ids.begin() + num_drafts);
    request.spec_token_ids.clear();
  }
  if (!request.known_to_workers) {
    const auto prompt = request.prompt_token_ids();
    const auto output = request.output_token_ids();
    out.scheduled_new_reqs.push_back({request.id(),
                                      {prompt.begin(), prompt.end()},
                                      {output.begin(), output.end()},
                                      request.sampling_params(),
                                      request.eos_token_ids(),
                                      new_block_ids,
                                      request.num_computed_tokens,
                                      {}});
    request.known_to_workers = true;
  } else {
    out.scheduled_cached_reqs.push_back(
        {request.id(), was_waiting, new_block_ids, request.num_computed_tokens});
  }
  request.num_computed_tokens += num_new_tokens;
  scheduled.samples = request.num_computed_tokens >= request.num_tokens() + request.num_output_placeholders;
  if (scheduled.samples) ++request.num_output_placeholders;
  ++request.num_steps_in_flight;
  kv_cache_manager_.cache_blocks(request);
  out.total_num_scheduled_tokens += num_new_tokens;
  out.num_scheduled_tokens.push_back(std::move(scheduled));
}

void Scheduler::update_from_output(const SchedulerOutput& plan, const ModelRunnerOutput& result,
                                   EngineCoreOutputs& outputs) {
  if (!result.error.empty()) {
    // Blocks were made findable when they were planned, and their owners may have gone since.
    kv_cache_manager_.uncache_all();
    for (const ScheduledTokens& scheduled : plan.num_scheduled_tokens) {
      const auto found = requests_.find(scheduled.request_id);
      if (found == requests_.end()) continue;
      finish(*found->second, RequestStatus::kFinishedError);
      outputs.outputs.push_back({scheduled.request_id, {}, {}, FinishReason::kError, {}, 0, result.error});
    }
    return;
  }
  QUIRE_CHECK(result.sampled.size() == plan.num_scheduled_tokens.size());
  for (size_t i = 0; i < result.sampled.size(); ++i) {
    const SampledTokens& sampled = result.sampled[i];
    const ScheduledTokens& scheduled = plan.num_scheduled_tokens[i];
    QUIRE_CHECK(sampled.request_id == scheduled.request_id);
    const auto found = requests_.find(sampled.request_id);
    if (found == requests_.end()) continue;  // finished while the step was in flight
    Request& request = *found->second;
    --request.num_steps_in_flight;
    if (sampled.token_ids.empty() && sampled.error.empty()) continue;  // a part of the prompt

    EngineCoreOutput output;
    output.request_id = request.id();
    output.num_cached_tokens = request.num_cached_tokens;
    if (!sampled.error.empty()) {
      output.error = sampled.error;
      output.finish_reason = FinishReason::kError;
      finish(request, RequestStatus::kFinishedError);
      outputs.outputs.push_back(std::move(output));
      continue;
    }
    // Rejected drafts: their keys and values will be written anew.
    const auto num_drafts = static_cast<int32_t>(scheduled.spec_token_ids.size());
    const int32_t num_rejected = num_drafts + 1 - static_cast<int32_t>(sampled.token_ids.size());
    if (num_drafts > 0 && request.status == RequestStatus::kRunning)
      request.num_computed_tokens -= num_rejected;
    append_tokens(request, sampled, output);
    outputs.outputs.push_back(std::move(output));
  }
}

void Scheduler::append_tokens(Request& request, const SampledTokens& sampled, EngineCoreOutput& output) {
  --request.num_output_placeholders;
  RequestStatus status = RequestStatus::kRunning;
  for (size_t i = 0; i < sampled.token_ids.size() && !is_finished(status); ++i) {
    request.append_output_token(sampled.token_ids[i]);
    output.new_token_ids.push_back(sampled.token_ids[i]);
    if (!sampled.logprobs.empty()) output.new_logprobs.push_back(sampled.logprobs[i]);
    ++stats_.num_generation_tokens;
    status = check_stop(request, output);
  }
  if (is_finished(status)) {
    output.finish_reason = finish_reason(status);
    finish(request, status);
  } else if (request.status == RequestStatus::kRunning) {
    kv_cache_manager_.cache_blocks(request);  // a placeholder that is known now may have filled a block
  }
}

RequestStatus Scheduler::check_stop(const Request& request, EngineCoreOutput& output) const {
  const SamplingParams& params = request.sampling_params();
  const int32_t last = request.token_ids().back();
  if (request.num_output_tokens() >= params.min_tokens) {
    const auto contains = [last](const std::vector<int32_t>& ids) {
      return std::find(ids.begin(), ids.end(), last) != ids.end();
    };
    if (contains(request.eos_token_ids())) return RequestStatus::kFinishedStopped;
    if (contains(params.stop_token_ids)) {
      output.stop_token_id = last;
      return RequestStatus::kFinishedStopped;
    }
  }
  if (request.num_output_tokens() >= params.max_tokens || request.num_tokens() >= config_.max_model_len) {
    return RequestStatus::kFinishedLengthCapped;
  }
  return RequestStatus::kRunning;
}

void Scheduler::finish(Request& request, RequestStatus status) {
  if (request.status == RequestStatus::kRunning) {
    running_.erase(std::find(running_.begin(), running_.end(), &request));
  } else {
    waiting_->remove(request);
  }
  kv_cache_manager_.free(request);
  request.status = status;
  if (request.known_to_workers) finished_req_ids_.push_back(request.id());
  requests_.erase(request.id());
}

std::vector<RequestId> Scheduler::unfinished_request_ids() const {
  std::vector<RequestId> ids;
  ids.reserve(requests_.size());
  for (const auto& [id, request] : requests_) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  return ids;
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = stats_;
  stats.num_running_reqs = static_cast<int32_t>(running_.size());
  stats.num_waiting_reqs = static_cast<int32_t>(waiting_->size());
  stats.num_free_blocks = kv_cache_manager_.num_free_blocks();
  return stats;
}

}  // namespace quire
