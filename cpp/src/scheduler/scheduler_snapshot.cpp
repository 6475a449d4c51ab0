// The scheduler's state, saved and restored: where a recording begins.
#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "scheduler/scheduler.h"
#include "util/check.h"

namespace quire {
namespace {

void require(bool ok, const char* what) {
  if (!ok) throw InvalidArgument(str("snapshot: ", what));
}

// What a request must bring to be scheduled as it was; its tokens' values do not matter.
EngineCoreRequest without_content(const RecordedRequest& recorded, int32_t num_output_tokens,
                                  int32_t hash_block_size, int32_t max_model_len) {
  require(recorded.num_prompt_tokens > 0 && num_output_tokens >= 0 && recorded.max_tokens > 0,
          "a request without tokens");
  // Counts that take memory are believed only when the rest of the request bears them out.
  const int64_t num_tokens = int64_t{recorded.num_prompt_tokens} + num_output_tokens;
  require(num_tokens <= max_model_len && recorded.max_tokens <= max_model_len,
          "a request longer than max_model_len");
  require(static_cast<size_t>(num_tokens / hash_block_size) == recorded.block_hashes.size(),
          "a request without hashes of its blocks");
  EngineCoreRequest request;
  request.request_id = recorded.request_id;
  request.prompt_token_ids = std::vector<int32_t>(static_cast<size_t>(recorded.num_prompt_tokens), 0);
  request.output_token_ids.assign(static_cast<size_t>(num_output_tokens), 0);
  request.sampling_params.edit().max_tokens = recorded.max_tokens;
  request.eos_token_ids = {kRecordedStop};
  request.priority = recorded.priority;
  request.arrival_time = recorded.arrival_time;
  request.deadline = recorded.deadline;
  request.user = recorded.user;
  request.mm_features = recorded.mm_features;
  if (recorded.has_prompt_logprobs != 0) request.num_prompt_logprobs = 0;
  request.fork_of = recorded.fork_of;
  request.awaits_forks = recorded.awaits_forks;
  request.lora_id = recorded.lora_id;
  return request;
}

}  // namespace

void Scheduler::add_recorded_request(const RecordedRequest& recorded, std::vector<BlockHash> hashes) {
  require(!requests_.contains(recorded.request_id), "a request is added twice");
  add(std::make_unique<Request>(without_content(recorded, recorded.num_output_tokens,
                                                kv_cache_manager_.hash_block_size(), config_.max_model_len),
                                kv_cache_manager_.hash_block_size(), parts_.hash_seed, std::move(hashes),
                                &totals_),
      recorded.waits_for_grammar != 0);
}

void Scheduler::replay_grammar_ready(RequestId id) {
  const auto found = requests_.find(id);
  require(found != requests_.end() &&
              found->second->status() == RequestStatus::kWaitingForStructuredOutputGrammar,
          "a grammar is ready that nobody waits for");
  take_from_grammar(*found->second);
}

void Scheduler::take_new_hashes(std::vector<std::pair<RequestId, KVBlockHash>>& out) {
  out.clear();
  out.swap(new_hashes_);
}

void Scheduler::save(SchedulerSnapshot& out,
                     const std::function<const SchedulerOutput&(size_t)>& in_flight_output) const {
  out.now = now_;
  out.next_step_id = next_step_id_;
  out.next_arrival_order = next_arrival_order_;
  out.pause_state = static_cast<uint8_t>(pause_state_);
  std::unordered_map<const Request*, size_t> index_of;
  const auto save_request = [&](const Request& r) {
    index_of[&r] = out.requests.size();
    r.save(out.requests.emplace_back());
  };
  for (const auto& [id, request] : requests_) save_request(*request);
  for (const auto& request : finished_) save_request(*request);
  for (const auto& [id, request] : held_) {
    save_request(*request);
    out.held.push_back(index_of.at(request.get()));
  }
  for (const Request* request : running_) {
    if (!request->is_finished()) out.running.push_back(index_of.at(request));
  }
  for (size_t i = 0; i < in_flight_.size(); ++i) {
    const InFlightStep& step = in_flight_[i];
    out.in_flight.push_back({step.step_id, in_flight_output(i).scheduled_reqs, step.lent_bytes});
    auto& requests = out.in_flight_requests.emplace_back();
    for (const Request* request : step.requests) requests.push_back(index_of.at(request));
  }
  out.finished_req_ids = finished_req_ids_;
  out.deadlines = deadlines_;
  waiting_->save(out);
  encoder_cache_manager_.save(out.encoder_cache);
  loras_.save(out.loras);
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
  for (const auto& [user, counter] : snapshot.user_counters)
    require(std::isfinite(counter), "a counter that is none");
  require(std::isfinite(snapshot.last_counter), "a counter that is none");
  kv_cache_manager_.restore(snapshot);
  encoder_cache_manager_.restore(snapshot.encoder_cache);
  loras_.restore(snapshot.loras);
  std::vector<Request*> requests;
  for (const RequestSnapshot& s : snapshot.requests) {
    auto owned = std::make_unique<Request>(
        without_content(s.request, s.num_tokens - s.request.num_prompt_tokens,
                        kv_cache_manager_.hash_block_size(), config_.max_model_len),
        kv_cache_manager_.hash_block_size(), parts_.hash_seed, hashes_of(s.request.request_id), &totals_);
    Request& r = *owned;
    requests.push_back(&r);
    r.restore(s);
    kv_cache_manager_.restore_blocks(r, s);
    if (r.is_finished()) {
      const bool held =
          std::find(snapshot.held.begin(), snapshot.held.end(), requests.size() - 1) != snapshot.held.end();
      if (held) {
        require(!r.blocks().empty() && held_.emplace(r.id(), std::move(owned)).second,
                "a request is held twice, or has nothing that could be");
      } else {
        finished_.push_back(std::move(owned));
      }
      continue;
    }
    const bool loads = r.status() == RequestStatus::kWaitingForRemoteKvs;
    const bool compiles = r.status() == RequestStatus::kWaitingForStructuredOutputGrammar;
    const bool stays = r.status() == RequestStatus::kWaitingForForks;
    require(r.is_queued() || r.is_running() || compiles || stays || (loads && parts_.kv_connector),
            "a request that waits outside");
    // What a connector has loaded may wait for its turn.
    if (compiles || (stays && r.num_computed_tokens() == 0) ||
        (r.is_queued() && !(parts_.kv_connector && r.num_slots() > 0))) {
      const bool holds = std::any_of(r.blocks().begin(), r.blocks().end(), [](const RequestBlocks& held) {
        return !held.ids.empty() || held.num_cached + held.num_skipped + held.num_sent > 0;
      });
      require(!holds && r.num_computed_tokens() == 0, "a request that waits and holds blocks");
    } else {
      require(!r.blocks().empty() && r.num_slots() >= r.num_computed_tokens(),
              "a request that runs without blocks");
    }
    require(requests_.emplace(r.id(), std::move(owned)).second, "a request is there twice");
    if (r.is_queued()) waiting_->add(r);
    if (compiles) waiting_for_grammar_.push_back(&r);
  }
  waiting_->restore(snapshot);
  const auto request_at = [&](size_t index) {
    require(index < requests.size(), "no such request");
    return requests[index];
  };
  for (size_t index : snapshot.running) {
    require(!request_at(index)->is_finished(), "a finished request runs");
    const Request& request = *running_.emplace_back(request_at(index));
    if (request.holds_lora())
      require(loras_.resume(request.lora_id()), "a request runs whose adapter has no slot");
  }
  require(snapshot.in_flight.size() == snapshot.in_flight_requests.size(),
          "steps in flight without requests");
  for (size_t i = 0; i < snapshot.in_flight.size(); ++i) {
    InFlightStep& step = in_flight_.push();
    step.step_id = snapshot.in_flight[i].step_id;
    step.lent_bytes = snapshot.in_flight[i].lent_bytes;
    step.requests.clear();
    for (size_t index : snapshot.in_flight_requests[i]) step.requests.push_back(request_at(index));
    require(step.requests.size() == snapshot.in_flight[i].scheduled_reqs.size(), "a step in flight is torn");
  }
  for (const auto& [id, request] : requests_) {
    if (request->fork_of() == 0) continue;
    const auto parent = requests_.find(request->fork_of());
    if (parent != requests_.end()) parent->second->add_fork();
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
