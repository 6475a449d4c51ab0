#include "scheduler/scheduler.h"

#include <algorithm>

#include "util/check.h"

namespace quire {
// Whether steps in flight sample all that it may still have.
bool Scheduler::is_all_in_flight(const Request& request) const {
  const int32_t num_coming = request.num_output_placeholders();
  return num_coming > 0 &&
         request.num_tokens() + num_coming >= std::min(request.max_num_tokens(), config_.max_model_len);
}

bool Scheduler::schedule(SchedulerOutput& out) {
  drop_finished();
  kv_cache_manager_.begin_schedule();
  out.step_id = next_step_id_;
  out.scheduled_reqs.clear();
  out.scheduled_new_reqs.clear();
  out.new_block_ids.clear(kv_cache_manager_.num_groups());
  out.spec_token_ids.clear();
  out.total_num_scheduled_tokens = 0;
  out.scheduled_encoder_inputs.clear();
  out.preempted_req_ids.clear();
  out.kv_copies.clear();
  scheduled_.clear();
  token_budget_ = pause_state_ == PauseState::kPausedAll ? 0 : config_.max_num_batched_tokens;
  encoder_budget_ = config_.max_num_encoder_input_tokens;
  running_prefills_ = false;

  schedule_running(out);
  num_scheduled_running_ = scheduled_.size();
  if (!out.preempted_req_ids.empty() && running_.empty()) give_back_youngest_load();
  // A preemption means that blocks are short: a new request would only take them from older ones.
  if (out.preempted_req_ids.empty() && pause_state_ == PauseState::kUnpaused) schedule_waiting(out);
  const bool scheduled = finish_schedule(out);
  finish_forked();
  return scheduled;
}

void Scheduler::schedule_running(SchedulerOutput& out) {
  for (size_t i = 0; i < running_.size() && token_budget_ > 0; ++i) {
    Request& request = *running_[i];
    if (request.is_quiet()) {
      i += schedule_quiet(i, out) - 1;
      continue;
    }
    encoder_inputs_.clear();
    int32_t num_new_tokens = num_running_tokens(request);
    if (!request.mm_features().empty())
      num_new_tokens = limit_by_encoder(request, request.num_computed_tokens(), num_new_tokens);
    if (num_new_tokens <= 0) {
      // Only what stays so: a call that schedules nothing is in no recording, and must decide nothing.
      if (is_all_in_flight(request)) end_lora(request);
      continue;
    }
    if (request.lora_id() != 0 && !request.holds_lora()) {
      if (!loras_.has_room(request.lora_id())) continue;
      begin_lora(request);
    }
    // What a draft model writes ahead stays within the longest sequence.
    const int32_t num_lookahead = std::min(
        config_.num_lookahead_tokens, config_.max_model_len - request.num_computed_tokens() - num_new_tokens);
    // Victims at or before this place, which move what follows forward.
    size_t num_removed = 0;
    bool preempted_itself = false;
    while (!kv_cache_manager_.allocate_slots(request, num_new_tokens, nullptr, num_lookahead)) {
      if (take_blocks_kept_for_forks()) continue;
      Request& victim = choose_victim();
      const auto place = std::find(running_.rbegin(), running_.rend(), &victim).base() - 1 - running_.begin();
      if (static_cast<size_t>(place) + num_removed <= i) ++num_removed;
      preempted_itself = &victim == &request;
      unschedule(victim, out);
      preempt(victim, out);
      if (preempted_itself) break;
    }
    // The least urgent of all did not fit: what runs behind it has no better claim.
    if (preempted_itself) break;
    running_prefills_ |= request.is_partial_prefill();
    schedule_request(request, num_new_tokens, /*was_waiting=*/false, out);
    i -= num_removed;  // may wrap below zero, and back with the loop's increment
  }
}

// Most requests of most steps. As many running ones from the i-th on as are quiet and fit; returns how many.
size_t Scheduler::schedule_quiet(size_t i, SchedulerOutput& out) {
  constexpr size_t kAhead = 8;
  size_t count = 0;
  const size_t end = std::min(running_.size(), i + static_cast<size_t>(token_budget_));
  for (; i < end && running_[i]->is_quiet(); ++i, ++count) {
    if (i + kAhead < running_.size()) running_[i + kAhead]->prefetch();
    running_[i]->begin_quiet_step(out.scheduled_reqs.emplace_back());
  }
  const auto first = running_.begin() + static_cast<std::ptrdiff_t>(i - count);
  scheduled_.insert(scheduled_.end(), first, first + static_cast<std::ptrdiff_t>(count));
  out.new_block_ids.push_empty_rows(count);
  token_budget_ -= static_cast<int32_t>(count);
  out.total_num_scheduled_tokens += static_cast<int32_t>(count);
  return count;
}

// How far a running request may go; 0 when it has nothing to do before a step in flight comes back.
int32_t Scheduler::num_running_tokens(const Request& request) const {
  // The last token allowed is already on its way.
  if (request.num_output_placeholders() > 0 &&
      request.num_tokens() + request.num_output_placeholders() >= request.max_num_tokens()) {
    return 0;
  }
  const int32_t start = request.num_computed_tokens();
  const int32_t num_left = request.num_tokens_with_spec() - start;
  // The last position holds a token that nothing follows: it is never computed.
  const int32_t limit = config_.max_model_len - 1 - start;
  return std::min(limit_chunk(start, num_left), limit);
}

// How many of the `num_left` tokens that follow the first `start` may be computed in this step.
int32_t Scheduler::limit_chunk(int32_t start, int32_t num_left) const {
  int32_t num_tokens = num_left;
  if (config_.long_prefill_token_threshold > 0) {
    num_tokens = std::min(num_tokens, config_.long_prefill_token_threshold);
  }
  num_tokens = std::min(num_tokens, token_budget_);
  if (kv_cache_manager_.has_state_groups() && config_.enable_prefix_caching && num_tokens < num_left) {
    // Only a state at a block's edge can be found again.
    const int32_t end = (start + num_tokens) / kv_cache_manager_.alignment() * kv_cache_manager_.alignment();
    if (end > start) num_tokens = end - start;
  }
  return num_tokens;
}

// Cuts the chunk before the first multimodal input that the encoder cannot take in this step. Those that the
// chunk needs are left in encoder_inputs_.
int32_t Scheduler::limit_by_encoder(Request& request, int32_t start, int32_t num_new_tokens) {
  const auto& features = request.mm_features();
  int32_t num_to_compute = 0;
  int32_t num_to_keep = 0;  // of cached outputs that nobody but this chunk refers to
  for (size_t i = 0; i < features.size() && num_new_tokens > 0; ++i) {
    const MultiModalFeature& feature = features[i];
    const int32_t end = start + num_new_tokens;
    if (feature.offset >= end) break;
    if (feature.offset + feature.num_embeds <= start) continue;
    const bool is_new = std::none_of(encoder_inputs_.begin(), encoder_inputs_.end(), [&](int32_t other) {
      return features[static_cast<size_t>(other)].mm_hash == feature.mm_hash;
    });
    const bool split = config_.disable_chunked_mm_input && feature.offset > start &&
                       feature.offset + feature.num_embeds > end;
    bool too_much = split;
    if (is_new && encoder_cache_manager_.is_cached(feature.mm_hash)) {
      const int32_t num_unused = encoder_cache_manager_.num_unused_embeds(feature.mm_hash);
      too_much |= !encoder_cache_manager_.can_allocate(num_to_compute + num_to_keep + num_unused);
      if (!too_much) num_to_keep += num_unused;
    } else if (is_new) {
      too_much |= num_to_compute + feature.num_embeds > encoder_budget_ ||
                  !encoder_cache_manager_.can_allocate(num_to_compute + num_to_keep + feature.num_embeds);
      if (!too_much) num_to_compute += feature.num_embeds;
    }
    if (too_much) return std::max(feature.offset - start, 0);
    encoder_inputs_.push_back(static_cast<int32_t>(i));
  }
  return num_new_tokens;
}

void Scheduler::schedule_waiting(SchedulerOutput& out) {
  asked_later_.clear();
  first_without_lora_ = nullptr;
  num_without_lora_ = 0;
  while (token_budget_ > 0 && running_.size() < static_cast<size_t>(config_.max_num_seqs)) {
    const bool long_prefills = config_.max_long_partial_prefills == 0 ||
                               totals_.num_long_partial_prefills < config_.max_long_partial_prefills;
    Request* request = waiting_->front(long_prefills);
    // A preempted request whose last token is still being sampled cannot be recomputed before it is known.
    if (!request || request->num_output_placeholders() > 0) break;
    const Admission admission = admit(*request, out);
    if (admission == Admission::kStop) break;
    if (admission == Admission::kAdmitted && first_without_lora_ && !overtake_for_lora()) break;
  }
  for (Request* request : asked_later_) waiting_->put_back(*request);
  // Nothing runs, and nothing is on its way: what the first in the queue lacks is held by others that wait.
  if (running_.empty() && in_flight_.empty() && totals_.num_waiting_for_remote_kvs == 0 &&
      (take_blocks_kept_for_forks() || give_back_youngest_load())) {
    schedule_waiting(out);
  }
}

// The youngest request that waits with what it has loaded, but the first in the queue, gives its blocks back,
// and loads anew in its turn. Returns false when there is none.
bool Scheduler::give_back_youngest_load() {
  if (!parts_.kv_connector) return false;
  const Request* const first = waiting_->front(true);
  Request* youngest = nullptr;
  for (const auto& [id, request] : requests_) {
    if (request.get() != first && request->is_queued() && request->num_slots() > 0 &&
        (!youngest || request->arrival_order() > youngest->arrival_order())) {
      youngest = request.get();
    }
  }
  if (youngest) start_over(*youngest);
  return youngest != nullptr;
}

Scheduler::Admission Scheduler::admit(Request& request, SchedulerOutput& out) {
  if (request.lora_id() != 0 && !loras_.has_room(request.lora_id())) return wait_for_lora(request);
  if (begins_when_its_lora_is_there(request)) {
    bring_loras_of_next_step(request);
    return Admission::kStop;
  }
  int32_t num_external = 0;
  const int32_t own_computed = request.num_computed_tokens();
  const Request* parent = find_parent(request);
  if (parent && !kv_cache_manager_.find_forked_blocks(*parent, computed_)) parent = nullptr;
  if (own_computed > 0 || request.skips_reading_prefix_cache()) {
    // The request holds blocks whose keys and values came from outside, or wants what no cache has.
    for (auto& ids : computed_.block_ids) ids.clear();
    computed_.block_ids.resize(kv_cache_manager_.num_groups());
    computed_.num_tokens = 0;
  } else if (!parent) {
    kv_cache_manager_.find_computed_blocks(request, computed_);
    if (parts_.kv_connector) {
      const auto match =
          parts_.kv_connector->get_num_new_matched_tokens(connector_view(request), computed_.num_tokens);
      if (!match) {
        waiting_->set_aside(request);
        asked_later_.push_back(&request);
        return Admission::kWaitsElsewhere;
      }
      num_external = std::min(match->num_tokens, request.num_tokens() - computed_.num_tokens);
      if (match->load_async && num_external > 0) {
        return load_remote(request, num_external) ? Admission::kWaitsElsewhere : Admission::kStop;
      }
      // One token is always computed here, or there would be no logits to sample from.
      num_external = std::min(num_external, request.num_tokens() - 1 - computed_.num_tokens);
    }
  }
  const int32_t start = own_computed + computed_.num_tokens + num_external;
  int32_t num_left = request.num_tokens() - start;
  const bool padded = config_.num_padding_drafts > 0 && !kv_cache_manager_.has_state_groups() &&
                      num_left == 1 && num_scheduled_running_ > 0 && !running_prefills_;
  if (padded) {
    num_left += config_.num_padding_drafts;
    // A step later it may be uniform: better than one that is not.
    if (num_left > token_budget_ || start + num_left > config_.max_model_len) return Admission::kStop;
  }
  if (!config_.enable_chunked_prefill && num_left > token_budget_ &&
      (config_.long_prefill_token_threshold == 0 || config_.long_prefill_token_threshold > token_budget_)) {
    return Admission::kStop;
  }
  encoder_inputs_.clear();
  const int32_t num_new_tokens = limit_by_encoder(request, start, limit_chunk(start, num_left));
  if (num_new_tokens <= 0) return Admission::kStop;
  if (config_.max_num_partial_prefills > 0 && num_new_tokens < num_left &&
      totals_.num_partial_prefills >= config_.max_num_partial_prefills) {
    return Admission::kStop;
  }
  const int32_t num_known =
      config_.scheduler_reserve_full_isl ? request.num_tokens() : start + num_new_tokens;
  const int32_t num_kept_free = running_.empty() ? 0 : watermark_blocks_;
  if (!kv_cache_manager_.fits(request, computed_, num_known,
                              config_.max_num_batched_tokens * config_.max_in_flight_steps, num_kept_free) ||
      !kv_cache_manager_.allocate_slots(
          request, num_external + num_new_tokens, &computed_,
          std::min(config_.num_lookahead_tokens, config_.max_model_len - start - num_new_tokens))) {
    return Admission::kStop;
  }
  if (parts_.kv_connector && own_computed == 0) {
    tell_connector_of_blocks(request, num_external);
  }

  waiting_->remove(request);
  stats_.external_prefix_cache_hits += static_cast<uint64_t>(num_external);
  if (parent) kv_cache_manager_.copy_tails(*parent, request, out.kv_copies);
  if (request.num_cached_tokens() < 0 && !request.skips_reading_prefix_cache() && !parent) {
    stats_.prefix_cache_queries += static_cast<uint64_t>(request.num_tokens());
    stats_.prefix_cache_hits += static_cast<uint64_t>(computed_.num_tokens);
  }
  request.run(start, num_external, now_);
  begin_lora(request);
  end_fork(request);
  if (padded) request.set_spec_token_ids(padding_drafts_);
  running_.push_back(&request);
  schedule_request(request, num_new_tokens, /*was_waiting=*/true, out);
  return Admission::kAdmitted;
}

void Scheduler::tell_connector_of_blocks(const Request& request, int32_t num_external_tokens) {
  KVConnectorRequest view = connector_view(request);
  view.num_computed_tokens = computed_.num_tokens;
  parts_.kv_connector->update_state_after_alloc(view, connector_blocks(request), num_external_tokens);
}

// Gives the request blocks to load into, and takes it out of the queue until they are filled. False when it
// does not fit.
bool Scheduler::load_remote(Request& request, int32_t num_external_tokens) {
  if (!kv_cache_manager_.fits(request, computed_, request.num_tokens(),
                              config_.max_num_batched_tokens * config_.max_in_flight_steps,
                              running_.empty() ? 0 : watermark_blocks_) ||
      !kv_cache_manager_.allocate_slots(request, num_external_tokens, &computed_)) {
    return false;
  }
  tell_connector_of_blocks(request, num_external_tokens);
  waiting_->remove(request);
  request.begin_load(computed_.num_tokens, num_external_tokens);
  return true;
}

Request& Scheduler::choose_victim() const {
  QUIRE_CHECK(!running_.empty());
  if (waiting_->preempts_last()) return *running_.back();
  Request* victim = running_.front();
  for (Request* request : running_) {
    if (waiting_->preempt_before(*request, *victim)) victim = request;
  }
  return *victim;
}

void Scheduler::preempt_all() {
  QUIRE_CHECK(in_flight_.empty(), "steps are in flight");
  drop_finished();
  while (take_blocks_kept_for_forks()) {
  }
  drop_finished();
  while (!running_.empty()) preempt(choose_victim());
}

void Scheduler::preempt(Request& request, SchedulerOutput& out) {
  preempt(request);
  out.preempted_req_ids.push_back(request.id());
}

void Scheduler::preempt(Request& request) {
  end_lora(request);
  kv_cache_manager_.free(request);
  request.preempt();
  for (const MultiModalFeature& feature : request.mm_features())
    encoder_cache_manager_.release(request.id(), feature.mm_hash);
  ++stats_.num_preemptions;
  running_.erase(std::find(running_.rbegin(), running_.rend(), &request).base() - 1);
  waiting_->add(request);
}

// Takes back what this very step gave a request that is then preempted.
void Scheduler::unschedule(Request& request, SchedulerOutput& out) {
  const auto found = std::find(scheduled_.begin(), scheduled_.end(), &request);
  if (found == scheduled_.end()) return;
  const auto index = found - scheduled_.begin();
  const ScheduledRequest scheduled = out.scheduled_reqs[static_cast<size_t>(index)];
  kv_cache_manager_.uncache_blocks(request, scheduled.num_computed_tokens);
  token_budget_ += scheduled.num_tokens;
  out.total_num_scheduled_tokens -= scheduled.num_tokens;
  request.take_back_step(scheduled);
  int32_t num_drafts_before = 0;
  for (auto i = out.scheduled_reqs.begin(); i != out.scheduled_reqs.begin() + index; ++i)
    num_drafts_before += i->num_spec_tokens;
  const auto first_draft = out.spec_token_ids.begin() + num_drafts_before;
  out.spec_token_ids.erase(first_draft, first_draft + scheduled.num_spec_tokens);
  // An input that another request of this step waits for is computed all the same.
  std::erase_if(out.scheduled_encoder_inputs, [&](const ScheduledEncoderInput& input) {
    if (input.request_id != request.id()) return false;
    const MultiModalFeature& feature = request.mm_features()[static_cast<size_t>(input.input_index)];
    if (!encoder_cache_manager_.discard(request.id(), feature.mm_hash)) return false;
    encoder_budget_ += feature.num_embeds;
    return true;
  });
  out.scheduled_reqs.erase(out.scheduled_reqs.begin() + index);
  out.new_block_ids.erase_row(static_cast<size_t>(index));
  scheduled_.erase(found);
}

void Scheduler::schedule_request(Request& request, int32_t num_new_tokens, bool was_waiting,
                                 SchedulerOutput& out) {
  ScheduledRequest& scheduled = out.scheduled_reqs.emplace_back();
  request.begin_step(num_new_tokens, scheduled, out.spec_token_ids);
  if (request.tell_workers()) {
    out.scheduled_new_reqs.push_back(request.new_request_data());
    scheduled.is_new = 1;
  } else {
    scheduled.resumed_from_preemption = was_waiting;
  }
  kv_cache_manager_.take_new_block_ids(request, out.new_block_ids);
  // What is cached first, so that it does not make room for the others.
  for (int32_t index : encoder_inputs_) {
    const MultiModalFeature& feature = request.mm_features()[static_cast<size_t>(index)];
    if (encoder_cache_manager_.is_cached(feature.mm_hash))
      encoder_cache_manager_.acquire(request.id(), feature);
  }
  for (int32_t index : encoder_inputs_) {
    const MultiModalFeature& feature = request.mm_features()[static_cast<size_t>(index)];
    if (!encoder_cache_manager_.acquire(request.id(), feature)) continue;
    encoder_budget_ -= feature.num_embeds;
    out.scheduled_encoder_inputs.push_back({request.id(), index});
  }

  if (waiting_->charges()) {
    // What is computed again after a preemption is not charged again: the user who gave way would then be the
    // one to give way next.
    const Request::Charge charge = request.charge(scheduled);
    waiting_->charge(request, charge.num_prefill_tokens, charge.num_decode_tokens);
  }
  kv_cache_manager_.cache_blocks(request, std::min(request.num_computed_tokens(), request.num_tokens()),
                                 /*hold_states=*/true);
  token_budget_ -= num_new_tokens;
  out.total_num_scheduled_tokens += num_new_tokens;
  scheduled_.push_back(&request);
  request.stay_quiet_until(num_quiet_tokens(request));
}

// How far decodes of the request need no look at anything but its own counts.
int32_t Scheduler::num_quiet_tokens(const Request& request) const {
  if (request.is_partial_prefill() || waiting_->charges()) return 0;
  // The last token allowed is never computed.
  return std::min({request.max_num_tokens() - 1, config_.max_model_len - 1,
                   kv_cache_manager_.num_quiet_tokens(request) - config_.num_lookahead_tokens});
}

bool Scheduler::finish_schedule(SchedulerOutput& out) {
  kv_cache_manager_.publish_states();
  out.kv_connector_metadata.clear();
  if (parts_.kv_connector) {
    connector_scheduled_.clear();
    for (const ScheduledRequest& s : out.scheduled_reqs)
      connector_scheduled_.push_back({s.request_id, s.num_computed_tokens, s.num_tokens});
    out.kv_connector_metadata =
        parts_.kv_connector->build_connector_meta(next_step_id_, connector_scheduled_);
  }
  kv_cache_manager_.end_schedule();
  const int64_t lent_bytes = kv_cache_manager_.lend();
  if (scheduled_.empty() && lent_bytes == 0 && out.kv_connector_metadata.empty()) return false;

  loras_.take_loads(out.lora_loads);
  kv_cache_manager_.take_extents(out.kv_extents);
  encoder_cache_manager_.take_freed(out.free_encoder_mm_hashes);
  out.finished_req_ids.clear();
  out.finished_req_ids.swap(finished_req_ids_);
  InFlightStep& step = in_flight_.push();
  step.step_id = next_step_id_++;
  step.requests.assign(scheduled_.begin(), scheduled_.end());
  step.lora_uses.swap(lora_uses_);
  step.lent_bytes = lent_bytes;
  ++stats_.num_steps;
  stats_.num_scheduled_tokens += static_cast<uint64_t>(out.total_num_scheduled_tokens);
  return true;
}

}  // namespace quire
