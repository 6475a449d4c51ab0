// What a step's results do to the requests in it.
#include <algorithm>

#include "scheduler/scheduler.h"
#include "util/check.h"

namespace quire {

void Scheduler::update_from_output(const SchedulerOutput& scheduler_output, const ModelRunnerOutput& result,
                                   EngineCoreOutputs& outputs) {
  QUIRE_CHECK(!in_flight_.empty() && in_flight_.front().step_id == scheduler_output.step_id, "step ",
              scheduler_output.step_id);
  InFlightStep& step = in_flight_.front();
  kv_cache_manager_.give_back(step.lent_bytes);
  if (parts_.kv_connector) update_from_kv_connector(result, outputs);
  if (!result.error.empty()) {
    for (size_t i = 0; i < step.requests.size(); ++i)
      step.requests[i]->end_step(scheduler_output.scheduled_reqs[i]);
    fail_step(result, step, outputs);
  } else {
    QUIRE_CHECK(result.step_id == scheduler_output.step_id && result.results.size() == step.requests.size(),
                "step ", scheduler_output.step_id, " has ", result.results.size(), " results");
    constexpr size_t kAhead = 8;
    // One token each, and nothing about it: most steps.
    const bool is_plain = result.errors.empty() && result.logprobs.empty() &&
                          result.draft_token_ids.empty() && scheduler_output.spec_token_ids.empty();
    for (size_t i = 0; i < step.requests.size(); ++i) {
      if (i + 2 * kAhead < step.requests.size()) step.requests[i + 2 * kAhead]->prefetch();
      if (i + kAhead < step.requests.size()) step.requests[i + kAhead]->prefetch_next_token();
      Request& request = *step.requests[i];
      const RequestResult& of_this = result.results[i];
      QUIRE_CHECK(of_this.request_id == request.id());
      if (is_plain && request.is_plain() && of_this.num_tokens == 1) {
        if (request.end_step(scheduler_output.scheduled_reqs[i]))
          take_token(request, result.sampled_token_ids[of_this.first_token], outputs);
      } else {
        take_result(request, scheduler_output.scheduled_reqs[i], of_this, result, outputs);
      }
    }
  }
  step.lora_uses.clear();
  in_flight_.pop();
  finish_forked();
  drop_finished();
  kv_cache_manager_.take_events(outputs.kv_events);
}

void Scheduler::take_token(Request& request, int32_t token_id, EngineCoreOutputs& outputs) {
  EngineCoreOutput& output = begin_output(request, outputs);
  end_output(request, append_token(request, token_id, output, outputs), output);
}

void Scheduler::take_result(Request& request, const ScheduledRequest& scheduled, const RequestResult& result,
                            const ModelRunnerOutput& all, EngineCoreOutputs& outputs) {
  if (!request.end_step(scheduled)) return;
  const auto index = static_cast<uint32_t>(&result - all.results.data());
  const auto of_this = [index](const auto& entry) { return entry.result_index == index; };
  if (!all.errors.empty()) {
    const auto error = std::find_if(all.errors.begin(), all.errors.end(), of_this);
    if (error != all.errors.end()) {
      report_finish(request, RequestStatus::kFinishedError, error->message, outputs);
      return;
    }
  }
  if (!request.mm_features().empty()) release_encoder_inputs(request);
  if (request.wants_prompt_logprobs()) {
    const auto found = std::find_if(all.prompt_logprobs.begin(), all.prompt_logprobs.end(), of_this);
    const bool has_some = found != all.prompt_logprobs.end();
    request.take_prompt_logprobs(scheduled, has_some ? found->positions : std::vector<PositionLogprobs>());
  }
  if (result.num_tokens == 0) return;  // a part of the prompt

  const RequestLogprobs* logprobs = nullptr;
  if (!all.logprobs.empty()) {
    const auto found = std::find_if(all.logprobs.begin(), all.logprobs.end(), of_this);
    if (found != all.logprobs.end()) logprobs = &*found;
  }
  if (scheduled.num_spec_tokens > 0) {
    // Rejected drafts: their keys and values will be written anew.
    const int32_t num_accepted = result.num_tokens - 1;
    QUIRE_CHECK(num_accepted <= scheduled.num_spec_tokens, num_accepted, " of ", scheduled.num_spec_tokens);
    if (request.is_running())
      request.rewind(request.num_computed_tokens() - (scheduled.num_spec_tokens - num_accepted));
    stats_.num_spec_tokens += static_cast<uint64_t>(scheduled.num_spec_tokens);
    stats_.num_accepted_spec_tokens += static_cast<uint64_t>(num_accepted);
  }
  append_tokens(request, all.token_ids(result), logprobs, outputs);
  if (request.is_running()) take_drafts(request, all.draft_ids(result));
}

// Says in `outputs` that the request has more tokens, which are appended next.
EngineCoreOutput& Scheduler::begin_output(const Request& request, EngineCoreOutputs& outputs) {
  EngineCoreOutput& output = outputs.outputs.emplace_back();
  output.request_id = request.id();
  output.num_cached_tokens = request.num_cached_tokens();
  output.first_scheduled_time = std::max(request.first_scheduled_time(), 0.0);
  output.first_token = static_cast<uint32_t>(outputs.token_ids.size());
  return output;
}

// Returns the status that it ends with, or kRunning.
RequestStatus Scheduler::append_token(Request& request, int32_t token_id, EngineCoreOutput& output,
                                      EngineCoreOutputs& outputs) {
  request.append_output_token(token_id);
  if (records_new_hashes_ && request.num_tokens() % kv_cache_manager_.hash_block_size() == 0) {
    const BlockHash& hash = request.block_hashes().back();
    new_hashes_.push_back({request.id(), {hash.high, hash.low}});
  }
  outputs.token_ids.push_back(token_id);
  ++output.num_tokens;
  ++stats_.num_generation_tokens;
  return check_stop(request, output);
}

void Scheduler::end_output(Request& request, RequestStatus status, EngineCoreOutput& output) {
  // With steps in flight a block may fill up with tokens that were not known when they were scheduled.
  if (config_.max_in_flight_steps > 1 && request.is_running()) {
    kv_cache_manager_.cache_blocks(
        request,
        std::min(request.num_computed_tokens() - request.num_output_placeholders(), request.num_tokens()));
  }
  if (!is_finished(status)) {
    // The next step that is scheduled makes it findable.
    if (kv_cache_manager_.fills_block(request, request.num_tokens()))
      kv_cache_manager_.prefetch_caching(request);
    return;
  }
  output.finish_reason = finish_reason(status);
  if (request.awaits_forks() && output.error.empty()) {
    stay(request);
  } else {
    finish(request, status);
  }
}

void Scheduler::append_tokens(Request& request, std::span<const int32_t> token_ids,
                              const RequestLogprobs* logprobs, EngineCoreOutputs& outputs) {
  EngineCoreOutput& output = begin_output(request, outputs);
  if (request.wants_prompt_logprobs()) {
    const auto index = static_cast<uint32_t>(outputs.outputs.size() - 1);
    outputs.prompt_logprobs.push_back({index, request.give_prompt_logprobs()});
  }
  RequestStatus status = request.status();
  for (size_t i = 0; i < token_ids.size() && !is_finished(status); ++i) {
    if (request.grammar() && !request.grammar()->accept_tokens(token_ids.subspan(i, 1))) {
      output.error = request.grammar()->error();
      status = RequestStatus::kFinishedError;
      break;
    }
    if (logprobs) output.new_logprobs.edit().push_back(logprobs->positions[i]);
    const RequestStatus stop = append_token(request, token_ids[i], output, outputs);
    if (is_finished(stop)) status = stop;
  }
  end_output(request, status, output);
}

bool Scheduler::samples_by_grammar(const SchedulerOutput& scheduler_output) const {
  if (num_grammars_ == 0) return false;
  return std::any_of(scheduler_output.scheduled_reqs.begin(), scheduler_output.scheduled_reqs.end(),
                     [this](const ScheduledRequest& scheduled) {
                       if (scheduled.samples == 0) return false;
                       const Request* request = find_request(scheduled.request_id);
                       return request != nullptr && request->grammar() != nullptr;
                     });
}

void Scheduler::make_grammar_output(const SchedulerOutput& scheduler_output, GrammarOutput& out) {
  out.result_indices.clear();
  grammar_masks_.clear();
  std::span<const int32_t> drafts = scheduler_output.spec_token_ids;
  for (size_t i = 0; i < scheduler_output.scheduled_reqs.size(); ++i) {
    const ScheduledRequest& scheduled = scheduler_output.scheduled_reqs[i];
    const auto num_drafts = static_cast<size_t>(scheduled.num_spec_tokens);
    const auto of_this = drafts.first(num_drafts);
    drafts = drafts.subspan(num_drafts);
    if (scheduled.samples == 0) continue;
    const Request* request = find_request(scheduled.request_id);
    if (request == nullptr || request->grammar() == nullptr) continue;
    out.result_indices.insert(out.result_indices.end(), num_drafts + 1, static_cast<uint32_t>(i));
    grammar_masks_.push_back({request->grammar(), of_this, {}});
  }
  if (grammar_masks_.empty()) return;
  const size_t words = parts_.structured_output_manager->num_mask_words();
  out.bitmask.resize(out.result_indices.size() * words);
  std::span<int32_t> rest = out.bitmask;
  for (GrammarMasks& masks : grammar_masks_) {
    masks.bitmask = rest.first((masks.drafts.size() + 1) * words);
    rest = rest.subspan(masks.bitmask.size());
  }
  parts_.structured_output_manager->fill_bitmasks(grammar_masks_);
}

RequestStatus Scheduler::check_stop(const Request& request, EngineCoreOutput& output) const {
  const int32_t last = request.token_ids().back();
  if (request.may_stop_at(last) && request.num_output_tokens() >= request.sampling_params().min_tokens) {
    const auto contains = [last](const std::vector<int32_t>& ids) {
      return std::find(ids.begin(), ids.end(), last) != ids.end();
    };
    if (contains(request.eos_token_ids())) return RequestStatus::kFinishedStopped;
    if (contains(request.sampling_params().stop_token_ids)) {
      output.stop_token_id = last;
      return RequestStatus::kFinishedStopped;
    }
  }
  if (request.num_tokens() >= std::min(request.max_num_tokens(), config_.max_model_len))
    return RequestStatus::kFinishedLengthCapped;
  return RequestStatus::kRunning;
}

void Scheduler::take_drafts(Request& request, std::span<const int32_t> drafts) {
  // A state cannot be rolled back behind a rejected draft.
  if (kv_cache_manager_.has_state_groups()) return;
  // Drafts in flight: how many tokens they will be is not known.
  if (request.num_computed_tokens() >= request.num_tokens() + request.num_output_placeholders()) return;
  if (request.grammar() && request.num_output_placeholders() == 0 && jumps_forward()) {
    // What must follow is a better guess than any.
    if (const auto forced = request.grammar()->propose(); !forced.empty()) drafts = forced;
  }
  // The first places are those of tokens that steps in flight sample.
  drafts = drafts.subspan(std::min(static_cast<size_t>(request.num_output_placeholders()), drafts.size()));
  if (drafts.empty()) return;
  if (request.grammar())
    drafts = drafts.first(static_cast<size_t>(request.grammar()->num_valid_drafts(drafts)));
  request.set_spec_token_ids(drafts);
}

// An encoder's output is needed until its place in the prompt is computed.
void Scheduler::release_encoder_inputs(Request& request) {
  const int32_t num_done = request.num_computed_tokens() - request.num_tokens_in_flight();
  for (const MultiModalFeature& feature : request.mm_features()) {
    if (feature.offset + feature.num_embeds <= num_done)
      encoder_cache_manager_.release(request.id(), feature.mm_hash);
  }
}

void Scheduler::fail_step(const ModelRunnerOutput& result, InFlightStep& step, EngineCoreOutputs& outputs) {
  // Blocks were made findable when they were scheduled, and their owners may have gone since.
  kv_cache_manager_.uncache_all();
  for (Request* request : step.requests) {
    if (request->is_finished()) continue;
    report_finish(*request, RequestStatus::kFinishedError, result.error, outputs);
  }
  // Encoder outputs of this step were not computed either; those that others refer to are older.
  encoder_cache_manager_.forget_unused();
  if (!parts_.kv_connector) return;
  // What was, or is, loaded may follow blocks of the failed step that were found: such a request starts over.
  for (auto& [id, request] : requests_) {
    if (request->status() == RequestStatus::kWaitingForRemoteKvs && request->num_computed_tokens() > 0) {
      request->rewind(0);
    } else if (!request->is_running() && request->num_computed_tokens() > request->num_external_tokens()) {
      start_over(*request);
    }
  }
}

void Scheduler::update_from_kv_connector(const ModelRunnerOutput& result, EngineCoreOutputs& outputs) {
  if (!result.invalid_block_ids.empty()) handle_invalid_blocks(result.invalid_block_ids, outputs);
  const auto release_held = [this](RequestId id) {
    const auto held = held_.find(id);
    if (held == held_.end()) return false;
    kv_cache_manager_.free(*held->second);
    finished_.push_back(std::move(held->second));
    held_.erase(held);
    return true;
  };
  for (RequestId id : result.finished_sending) release_held(id);
  for (RequestId id : result.finished_recving) {
    if (release_held(id)) continue;  // aborted while it loaded
    const auto found = requests_.find(id);
    if (found == requests_.end() || found->second->status() != RequestStatus::kWaitingForRemoteKvs) continue;
    Request& request = *found->second;
    request.end_load();
    waiting_->add(request);
    if (request.kv_load_failed() && config_.kv_load_failure_policy == SchedulerConfig::KVLoadFailure::kFail) {
      report_finish(request, RequestStatus::kFinishedError, "its keys and values could not be loaded",
                    outputs);
      continue;
    }
    stats_.external_prefix_cache_hits += static_cast<uint64_t>(request.num_external_tokens());
    if (request.num_computed_tokens() == 0) {
      kv_cache_manager_.free(request);  // nothing came: it starts over
    } else {
      kv_cache_manager_.cache_blocks(request, request.num_computed_tokens());
      // One token is always computed here, or there would be no logits to sample from.
      request.rewind(request.num_tokens() - 1);
    }
  }
}

// Requests that were to read these blocks go back to the last token before them. One that shares such a block
// with another computes it too: the same keys and values, whichever of them comes first.
void Scheduler::handle_invalid_blocks(std::span<const BlockId> invalid, EngineCoreOutputs& outputs) {
  std::vector<BlockId> orphans(invalid.begin(), invalid.end());  // whose requests have gone
  const int32_t block_size = kv_cache_manager_.block_size(0);
  const auto first_bad = [&](const Request& request) -> int32_t {
    if (request.blocks().empty()) return -1;
    const auto& ids = request.blocks()[0].ids;
    std::erase_if(orphans, [&](BlockId id) { return std::find(ids.begin(), ids.end(), id) != ids.end(); });
    const auto found = std::find_first_of(ids.begin(), ids.end(), invalid.begin(), invalid.end());
    return found == ids.end() ? -1 : static_cast<int32_t>(found - ids.begin());
  };
  for (Request* request : running_) {
    const int32_t block = request->is_finished() ? -1 : first_bad(*request);
    if (block < 0 || block * block_size >= request->num_computed_tokens()) continue;
    // A block that was loaded for another may be this one's by now: something is left to compute all the
    // same.
    const int32_t num_good_tokens = std::min(block * block_size, request->num_tokens() - 1);
    kv_cache_manager_.uncache_blocks(*request, num_good_tokens);
    if (config_.kv_load_failure_policy == SchedulerConfig::KVLoadFailure::kFail) {
      report_finish(*request, RequestStatus::kFinishedError, "its keys and values could not be loaded",
                    outputs);
      continue;
    }
    request->rewind(num_good_tokens, InFlightResults::kDrop);
    for (const MultiModalFeature& feature : request->mm_features())
      encoder_cache_manager_.release(request->id(), feature.mm_hash);
  }
  for (auto& [id, request] : requests_) {
    if (request->status() != RequestStatus::kWaitingForRemoteKvs) continue;
    const int32_t block = first_bad(*request);
    if (block < 0) continue;
    // The block may have been found in the cache, and not be one that the request loads.
    kv_cache_manager_.uncache_blocks(*request, block * block_size);
    request->fail_load(block * block_size);
  }
  // What was computed on blocks that are not good may be found under other names.
  if (!orphans.empty()) kv_cache_manager_.uncache_all();
}

}  // namespace quire
