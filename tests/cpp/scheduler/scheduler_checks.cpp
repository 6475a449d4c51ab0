// What must hold of a step when it is scheduled, of what requests are told, and between any two calls.
#include <algorithm>
#include <set>
#include <utility>

#include "scheduler/random_connector.h"

namespace quire {

void SchedulerChecker::take_outputs(const EngineCoreOutputs& outputs) {
  for (const EngineCoreOutput& output : outputs.outputs) {
    require(live_.contains(output.request_id), "an output of request ", output.request_id,
            ", which has ended");
    Model& model = live_.at(output.request_id);
    model.num_tokens += output.num_tokens;
    if (output.finish_reason != FinishReason::kNone) {
      end(output.request_id);
    } else {
      require(model.num_tokens - model.num_prompt_tokens < model.max_tokens, "more than max_tokens");
    }
  }
}

void SchedulerChecker::schedule() {
  EngineCoreOutputs outputs;
  scheduler_->advance(now_, outputs);
  take_outputs(outputs);
  Step step;
  if (connector_) connector_->loaded_now.clear();
  SchedulerOutput& scheduler_output = step.scheduler_output;
  const bool scheduled = scheduler_->schedule(scheduler_output);
  for (RequestId id : scheduler_output.preempted_req_ids) {
    Model& model = live_.at(id);
    model.num_computed = -1;
  }
  require(scheduled || scheduler_output.scheduled_reqs.empty(), "requests in a step that is none");
  check_admission(scheduler_output);
  if (!scheduled) return;
  require(scheduler_output.step_id == ++last_step_, "step ", scheduler_output.step_id);
  int32_t total = 0;
  size_t num_drafts = 0, num_new = 0;
  std::set<RequestId> seen;
  for (size_t i = 0; i < scheduler_output.scheduled_reqs.size(); ++i) {
    const ScheduledRequest& s = scheduler_output.scheduled_reqs[i];
    const RequestId id = s.request_id;
    require(seen.insert(id).second, "request ", id, " is scheduled twice");
    require(live_.contains(id), "request ", id, " is scheduled after its end");
    Model& model = live_.at(id);
    require(s.num_tokens > s.num_spec_tokens && s.num_spec_tokens >= 0, "request ", id, ": ", s.num_tokens,
            " tokens");
    require(s.is_new == !model.told, "request ", id, " is new twice, or never");
    if (s.is_new) {
      require(num_new < scheduler_output.scheduled_new_reqs.size() &&
                  scheduler_output.scheduled_new_reqs[num_new].request_id == id,
              "new requests");
      ++num_new;
      model.told = true;
      model.table.assign(policies_.size(), {});
    }
    if (s.resumed_from_preemption || s.is_new) {
      require(model.num_computed < 0, "request ", id, " resumes while it runs");
      model.num_computed = s.num_computed_tokens;
      for (auto& list : model.table) list.clear();
    }
    require(s.num_computed_tokens == model.num_computed, "request ", id, " goes on at ",
            s.num_computed_tokens, ", not ", model.num_computed);
    model.num_computed += s.num_tokens;
    require(model.num_computed < config_.max_model_len || config_.num_padding_drafts > 0,
            "beyond max_model_len");
    const int32_t num_known = model.num_tokens + model.num_sampling + s.num_spec_tokens;
    require(model.num_computed <= num_known, "request ", id, " computes tokens nobody knows");
    require((s.samples != 0) == (model.num_computed == num_known), "request ", id,
            " samples at the wrong place");
    model.num_sampling += s.samples;
    total += s.num_tokens;
    num_drafts += static_cast<size_t>(s.num_spec_tokens);
    const Request& request = *scheduler_->find_request(id);
    for (size_t g = 0; g < policies_.size(); ++g) {
      auto& table = model.table[g];
      const auto ids = scheduler_output.new_block_ids.at(i, g);
      table.insert(table.end(), ids.begin(), ids.end());
      const auto& held = request.blocks()[g].ids;
      require(table.size() == held.size(), "request ", id, ": the workers know ", table.size(), " blocks of ",
              held.size());
      const int32_t bs = policies_[g].block_size();
      require(static_cast<int32_t>(table.size()) * bs >= model.num_computed, "request ", id,
              ": no slot for its tokens");
      const int32_t first = std::max(policies_[g].first_needed_block(s.num_computed_tokens),
                                     policies_[g].is_state() ? (model.num_computed - 1) / bs : 0);
      for (int32_t b = first; b < policies_[g].num_blocks(model.num_computed); ++b) {
        require(held[static_cast<size_t>(b)] != kNullBlock &&
                    held[static_cast<size_t>(b)] == table[static_cast<size_t>(b)],
                "request ", id, ": block ", b, " of group ", g, " is needed and not there");
      }
    }
  }
  require(total == scheduler_output.total_num_scheduled_tokens && total <= config_.max_num_batched_tokens,
          total, " tokens in a step");
  require(num_drafts == scheduler_output.spec_token_ids.size(), "drafts");
  require(num_new == scheduler_output.scheduled_new_reqs.size(), "new requests");
  require(scheduler_output.new_block_ids.num_rows() == scheduler_output.scheduled_reqs.size(),
          "rows of blocks");
  require(seen.size() <= static_cast<size_t>(config_.max_num_seqs), seen.size(), " requests run");
  require(scheduler_->pause_state() != PauseState::kPausedAll || seen.empty(), "a step while paused");
  int32_t num_embeds = 0;
  for (const ScheduledEncoderInput& input : scheduler_output.scheduled_encoder_inputs) {
    const Request* request = scheduler_->find_request(input.request_id);
    require(request != nullptr, "an encoder input of nobody");
    num_embeds += request->mm_features().at(static_cast<size_t>(input.input_index)).num_embeds;
  }
  check_loras(scheduler_output);
  require(num_embeds <= config_.max_num_encoder_input_tokens, num_embeds, " embeddings in a step");
  require(scheduler_->encoder_cache_manager().num_free() >= 0, "encoder cache over-full");
  if (connector_) step.loaded = connector_->loaded_now;
  in_flight_.push_back(std::move(step));
}

void SchedulerChecker::check_loras(const SchedulerOutput& scheduler_output) {
  std::set<int32_t> changed;
  for (const LoraLoad& load : scheduler_output.lora_loads) {
    require(load.slot >= 0 && load.slot < config_.max_loras, "adapter ", load.lora_id, " in slot ",
            load.slot);
    require(changed.insert(load.slot).second, "slot ", load.slot, " is filled twice");
    require(std::ranges::find(lora_slots_, load.lora_id) == lora_slots_.end(), "adapter ", load.lora_id,
            " lies there already");
    lora_slots_[static_cast<size_t>(load.slot)] = load.lora_id;
  }
  std::set<LoraId> used;
  for (const ScheduledRequest& s : scheduler_output.scheduled_reqs) {
    const LoraId id = scheduler_->find_request(s.request_id)->lora_id();
    require(id == 0 || std::ranges::find(lora_slots_, id) != lora_slots_.end(), "request ", s.request_id,
            " is scheduled without its adapter ", id);
    used.insert(id);
  }
  const auto waits_with = [this](LoraId id) {
    return std::ranges::any_of(live_, [&](const auto& entry) {
      const Request* request = scheduler_->find_request(entry.first);
      return request->is_queued() && request->lora_id() == id;
    });
  };
  int32_t num_awaited = 0;
  for (const LoraLoad& load : scheduler_output.lora_loads) {
    num_awaited += used.contains(load.lora_id);
    require(used.contains(load.lora_id) ||
                (waits_with(load.lora_id) && num_awaited >= config_.max_awaited_lora_loads),
            "adapter ", load.lora_id, " is loaded for nobody");
  }
  // Of a step with nothing else to do, one.
  require(num_awaited <= std::max(config_.max_awaited_lora_loads, 1), num_awaited, " adapters are awaited");
  for (const NewRequestData& data : scheduler_output.scheduled_new_reqs) {
    require(data.lora_id == scheduler_->find_request(data.request_id)->lora_id(), "request ", data.request_id,
            " is told with adapter ", data.lora_id);
  }
}

void SchedulerChecker::check_admission(const SchedulerOutput& scheduler_output) {
  if (config_.policy != "fcfs" || policies_.size() > 1 || connector_ || config_.encoder_cache_size > 0 ||
      !config_.enable_chunked_prefill || config_.max_num_partial_prefills > 0 ||
      config_.max_long_partial_prefills > 0 || config_.watermark > 0 || config_.num_padding_drafts > 0 ||
      scheduler_->pause_state() != PauseState::kUnpaused || !scheduler_output.preempted_req_ids.empty()) {
    return;
  }
  const Request* oldest = nullptr;
  size_t num_running = 0;
  for (RequestId id : scheduler_->unfinished_request_ids()) {
    const Request* request = scheduler_->find_request(id);
    num_running += request->is_running();
    if (request->is_running()) continue;
    // Passed over while there is no slot for its adapter, but not by any number of others.
    if (request->lora_id() != 0 && !scheduler_->lora_manager().has_room(request->lora_id())) {
      require(request->num_overtaken() <= 128, "request ", id, " is overtaken for ever");
      if (request->num_overtaken() == 128) return;
      continue;
    }
    if (!oldest || request->arrival_order() < oldest->arrival_order()) oldest = request;
  }
  // A step later, when its adapter is there.
  if (oldest && std::ranges::find(scheduler_output.lora_loads, oldest->lora_id(), &LoraLoad::lora_id) !=
                    scheduler_output.lora_loads.end()) {
    return;
  }
  if (!oldest || oldest->num_output_placeholders() > 0 ||
      num_running >= static_cast<size_t>(config_.max_num_seqs) ||
      scheduler_output.total_num_scheduled_tokens >= config_.max_num_batched_tokens) {
    return;
  }
  const int32_t num_needed = policies_[0].num_blocks(oldest->num_tokens() + config_.num_lookahead_tokens);
  require(scheduler_->stats().num_free_blocks < num_needed, "request ", oldest->id(), " waits, though ",
          num_needed, " blocks are free");
}

void SchedulerChecker::check() const {
  const KVCacheManager& kv = scheduler_->kv_cache_manager();
  const SchedulerStats stats = scheduler_->stats();
  require(scheduler_->num_unfinished_requests() == live_.size(), "unfinished requests");
  std::vector<std::vector<int32_t>> owners(policies_.size());
  for (size_t g = 0; g < policies_.size(); ++g)
    owners[g].resize(static_cast<size_t>(kv.block_pool(g).num_usable_blocks()) + 1);
  int64_t waiting_tokens = 0, prefill_tokens = 0, wasted = 0;
  int32_t num_running = 0, num_waiting = 0;
  for (const auto& [id, model] : live_) {
    const Request* found = scheduler_->find_request(id);
    require(found != nullptr, "request ", id, " is gone");
    const Request& request = *found;
    require(!request.is_finished(), "request ", id, " is finished and not");
    num_running += request.is_running();
    num_waiting += !request.is_running();
    if (request.is_queued()) waiting_tokens += request.num_tokens() - request.num_computed_tokens();
    if (request.is_running()) {
      prefill_tokens += std::max(request.num_prefill_tokens() - request.num_computed_tokens(), 0);
      require(request.num_computed_tokens() == model.num_computed, "request ", id, " computed ",
              request.num_computed_tokens(), ", not ", model.num_computed);
    }
    for (size_t g = 0; g < request.blocks().size(); ++g) {
      const auto& ids = request.blocks()[g].ids;
      if (!policies_[g].is_state())
        wasted += std::max(
            static_cast<int32_t>(ids.size()) * policies_[g].block_size() - request.num_computed_tokens(), 0);
      for (BlockId block : ids) owners[g].at(static_cast<size_t>(block)) += block != kNullBlock;
    }
  }
  std::set<LoraId> loras;
  for (const auto& [id, model] : live_) {
    const Request& request = *scheduler_->find_request(id);
    if (!request.holds_lora()) continue;
    require(request.is_running() && request.lora_id() != 0, "request ", id, " holds an adapter");
    loras.insert(request.lora_id());
    require(std::ranges::find(lora_slots_, request.lora_id()) != lora_slots_.end(), "request ", id,
            " runs without its adapter");
  }
  require(std::ssize(loras) == scheduler_->lora_manager().num_running(), loras.size(), " adapters run, not ",
          scheduler_->lora_manager().num_running());
  require(num_running <= config_.max_num_seqs, num_running, " requests run");
  require(stats.num_waiting_reqs == num_waiting, stats.num_waiting_reqs, " wait, not ", num_waiting);
  require(stats.num_waiting_tokens == waiting_tokens, "waiting_tokens ", stats.num_waiting_tokens, ", not ",
          waiting_tokens);
  require(stats.num_prefill_tokens == prefill_tokens, "prefill_tokens ", stats.num_prefill_tokens, ", not ",
          prefill_tokens);
  const bool held = scheduler_->num_held_requests() > 0;  // their blocks are nobody's here
  require(held || stats.num_wasted_slots == wasted, "wasted ", stats.num_wasted_slots, ", not ", wasted);
  for (size_t g = 0; g < policies_.size(); ++g) {
    const BlockPool& pool = kv.block_pool(g);
    int32_t num_used = 0;
    for (BlockId id = 1; id <= pool.num_usable_blocks(); ++id) {
      const int32_t count = owners[g][static_cast<size_t>(id)];
      require(pool.ref_count(id) == count || (held && pool.ref_count(id) > count), "block ", id, " of group ",
              g, " has ", pool.ref_count(id), " references and ", count, " owners");
      num_used += pool.ref_count(id) > 0;
    }
    require(pool.num_free_blocks() + num_used == pool.num_mapped_blocks(), "a block of group ", g,
            " is lost");
  }
}

}  // namespace quire
