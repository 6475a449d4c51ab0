// The scheduler's state, saved and restored: where a recording begins.
#include <algorithm>
#include <unordered_map>

#include "scheduler/scheduler.h"
#include "util/check.h"

namespace quire {
namespace {

void require(bool ok, const char* what) {
  if (!ok) throw InvalidArgument(str("snapshot: ", what));
}

// What a request must bring to be scheduled as it was; its tokens' values do not matter.
EngineCoreRequest without_content(const RecordedRequest& recorded, int32_t num_output_tokens) {
  require(recorded.num_prompt_tokens > 0 && num_output_tokens >= 0 && recorded.max_tokens > 0,
          "a request without tokens");
  EngineCoreRequest request;
  request.request_id = recorded.request_id;
  request.prompt_token_ids.assign(static_cast<size_t>(recorded.num_prompt_tokens), 0);
  request.output_token_ids.assign(static_cast<size_t>(num_output_tokens), 0);
  request.sampling_params.max_tokens = recorded.max_tokens;
  request.eos_token_ids = {kRecordedStop};
  request.priority = recorded.priority;
  request.arrival_time = recorded.arrival_time;
  request.deadline = recorded.deadline;
  request.user = recorded.user;
  request.mm_features = recorded.mm_features;
  return request;
}

}  // namespace

RecordedRequest Scheduler::record(const Request& request) const {
  RecordedRequest recorded;
  recorded.request_id = request.id();
  recorded.num_prompt_tokens = request.num_prompt_tokens();
  recorded.num_output_tokens = request.num_output_tokens();
  recorded.block_hashes.reserve(request.block_hashes().size());
  for (const BlockHash& hash : request.block_hashes()) recorded.block_hashes.push_back({hash.high, hash.low});
  recorded.max_tokens = request.sampling_params().max_tokens;
  recorded.priority = request.priority();
  recorded.arrival_time = request.arrival_time();
  recorded.deadline = request.deadline();
  recorded.user = request.user();
  recorded.mm_features = request.mm_features();
  return recorded;
}

void Scheduler::add_recorded_request(const RecordedRequest& recorded, std::vector<BlockHash> hashes) {
  require(!requests_.contains(recorded.request_id), "a request is added twice");
  add(std::make_unique<Request>(without_content(recorded, recorded.num_output_tokens),
                                kv_cache_manager_.hash_block_size(), std::move(hashes)));
}

void Scheduler::take_new_hashes(std::vector<std::pair<RequestId, KVBlockHash>>& out) {
  out.clear();
  out.swap(new_hashes_);
}

void Scheduler::save(SchedulerSnapshot& out,
                     const std::function<const SchedulerOutput&(size_t)>& in_flight_plan) const {
  QUIRE_CHECK(held_.empty() && waiting_for_grammar_.empty() && num_waiting_for_remote_kvs_ == 0);
  out.now = now_;
  out.next_step_id = next_step_id_;
  out.next_arrival_order = next_arrival_order_;
  out.pause_state = static_cast<uint8_t>(pause_state_);
  std::unordered_map<const Request*, size_t> index_of;
  const auto save_request = [&](const Request& r) {
    index_of[&r] = out.requests.size();
    RequestSnapshot& s = out.requests.emplace_back();
    s.request = record(r);
    s.num_tokens = r.num_tokens();
    s.status = static_cast<uint8_t>(r.status);
    s.arrival_order = r.arrival_order;
    s.num_overtaken = r.num_overtaken;
    s.num_computed_tokens = r.num_computed_tokens;
    s.num_output_placeholders = r.num_output_placeholders;
    s.num_steps_in_flight = r.num_steps_in_flight;
    s.num_tokens_in_flight = r.num_tokens_in_flight;
    s.num_prefill_tokens = r.num_prefill_tokens;
    s.num_cached_tokens = r.num_cached_tokens;
    s.num_preemptions = r.num_preemptions;
    s.num_queued_tokens = r.num_queued_tokens;
    s.num_counted_prefill = r.num_counted_prefill;
    s.num_results_to_drop = r.num_results_to_drop;
    s.num_spec_tokens = static_cast<int32_t>(r.spec_token_ids.size());
    s.num_slots = r.num_slots;
    s.num_wasted_slots = r.num_wasted_slots;
    s.known_to_workers = r.known_to_workers;
    s.is_partial_prefill = r.is_partial_prefill;
    s.is_long_prefill = r.is_long_prefill;
    s.first_scheduled_time = r.first_scheduled_time;
    for (const RequestBlocks& held : r.blocks)
      s.blocks.push_back({held.ids, held.num_cached, held.num_skipped, held.num_sent, held.num_exact_tokens});
  };
  for (const auto& [id, request] : requests_) save_request(*request);
  for (const auto& request : finished_) save_request(*request);
  for (const Request* request : running_) out.running.push_back(index_of.at(request));
  for (size_t i = 0; i < in_flight_.size(); ++i) {
    const InFlightStep& step = in_flight_[i];
    out.in_flight.push_back({step.step_id, in_flight_plan(i).scheduled_reqs});
    auto& requests = out.in_flight_requests.emplace_back();
    for (const Request* request : step.requests) requests.push_back(index_of.at(request));
  }
  out.finished_req_ids = finished_req_ids_;
  out.deadlines = deadlines_;
  waiting_->save(out);
  encoder_cache_manager_.save(out.encoder_cache);
  kv_cache_manager_.save(out);
  out.stats = stats_;
}

void Scheduler::restore(const SchedulerSnapshot& snapshot, const RecordedHashes& hashes_of) {
  QUIRE_CHECK(requests_.empty() && next_step_id_ == 1);
  now_ = snapshot.now;
  next_step_id_ = snapshot.next_step_id;
  next_arrival_order_ = snapshot.next_arrival_order;
  require(snapshot.pause_state <= static_cast<uint8_t>(PauseState::kPausedAll), "an unknown pause state");
  pause_state_ = static_cast<PauseState>(snapshot.pause_state);
  kv_cache_manager_.restore(snapshot);
  encoder_cache_manager_.restore(snapshot.encoder_cache);
  waiting_->restore(snapshot);
  std::vector<Request*> requests;
  for (const RequestSnapshot& s : snapshot.requests) {
    require(s.status <= static_cast<uint8_t>(RequestStatus::kFinishedError), "an unknown request status");
    require(s.blocks.empty() || s.blocks.size() == kv_cache_manager_.num_groups(),
            "another number of KV groups");
    auto owned =
        std::make_unique<Request>(without_content(s.request, s.num_tokens - s.request.num_prompt_tokens),
                                  kv_cache_manager_.hash_block_size(), hashes_of(s.request.request_id));
    Request& r = *owned;
    requests.push_back(&r);
    r.status = static_cast<RequestStatus>(s.status);
    r.arrival_order = s.arrival_order;
    r.num_overtaken = s.num_overtaken;
    r.num_computed_tokens = s.num_computed_tokens;
    r.num_output_placeholders = s.num_output_placeholders;
    r.num_steps_in_flight = s.num_steps_in_flight;
    r.num_tokens_in_flight = s.num_tokens_in_flight;
    r.num_prefill_tokens = s.num_prefill_tokens;
    r.num_cached_tokens = s.num_cached_tokens;
    r.num_preemptions = s.num_preemptions;
    r.num_counted_prefill = s.num_counted_prefill;
    r.num_results_to_drop = s.num_results_to_drop;
    require(s.num_spec_tokens >= 0 && s.num_spec_tokens < (1 << 16), "too many draft tokens");
    r.spec_token_ids.assign(static_cast<size_t>(s.num_spec_tokens), 0);
    r.num_slots = s.num_slots;
    r.num_wasted_slots = s.num_wasted_slots;
    r.known_to_workers = s.known_to_workers != 0;
    r.is_partial_prefill = s.is_partial_prefill != 0;
    r.is_long_prefill = s.is_long_prefill != 0;
    r.first_scheduled_time = s.first_scheduled_time;
    for (const RequestBlocksSnapshot& held : s.blocks)
      r.blocks.push_back({held.ids, held.num_cached, held.num_skipped, held.num_sent, held.num_exact_tokens});
    if (r.is_partial_prefill) {
      ++num_partial_prefills_;
      num_long_partial_prefills_ += r.is_long_prefill;
    }
    if (is_finished(r.status)) {
      finished_.push_back(std::move(owned));
      continue;
    }
    const bool queued = r.status == RequestStatus::kWaiting || r.status == RequestStatus::kPreempted;
    require(queued || r.status == RequestStatus::kRunning, "a request that waits outside");
    require(requests_.emplace(r.id(), std::move(owned)).second, "a request is there twice");
    if (queued) {
      waiting_->add(r);
      r.num_queued_tokens = s.num_queued_tokens;
    }
  }
  const auto request_at = [&](size_t index) {
    require(index < requests.size(), "no such request");
    return requests[index];
  };
  for (size_t index : snapshot.running) {
    require(!is_finished(request_at(index)->status), "a finished request runs");
    running_.push_back(request_at(index));
  }
  require(snapshot.in_flight.size() == snapshot.in_flight_requests.size(),
          "steps in flight without requests");
  for (size_t i = 0; i < snapshot.in_flight.size(); ++i) {
    InFlightStep& step = in_flight_.push();
    step.step_id = snapshot.in_flight[i].step_id;
    step.requests.clear();
    for (size_t index : snapshot.in_flight_requests[i]) step.requests.push_back(request_at(index));
    require(step.requests.size() == snapshot.in_flight[i].scheduled_reqs.size(), "a step in flight is torn");
  }
  finished_req_ids_ = snapshot.finished_req_ids;
  deadlines_ = snapshot.deadlines;
  stats_ = snapshot.stats;
}

void EncoderCacheManager::save(EncoderCacheSnapshot& out) const {
  out.num_free = num_free_;
  for (const auto& [hash, entry] : entries_) {
    out.hashes.push_back(hash);
    out.num_embeds.push_back(entry.num_embeds);
    out.owners.push_back(entry.owners);
  }
  out.unused.assign(unused_.begin(), unused_.end());
  out.freed = freed_;
}

void EncoderCacheManager::restore(const EncoderCacheSnapshot& snapshot) {
  require(snapshot.hashes.size() == snapshot.num_embeds.size() &&
              snapshot.hashes.size() == snapshot.owners.size(),
          "a torn encoder cache");
  num_free_ = snapshot.num_free;
  for (size_t i = 0; i < snapshot.hashes.size(); ++i) {
    entries_[snapshot.hashes[i]] = {snapshot.num_embeds[i], snapshot.owners[i], {}};
  }
  for (const std::string& hash : snapshot.unused) {
    const auto entry = entries_.find(hash);
    require(entry != entries_.end() && entry->second.owners.empty(), "a torn encoder cache");
    entry->second.unused = unused_.insert(unused_.end(), hash);
    num_unused_ += entry->second.num_embeds;
  }
  freed_ = snapshot.freed;
}

}  // namespace quire
