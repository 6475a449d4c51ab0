#include "scheduler/scheduler_checker.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <utility>

#include "kv_cache/kv_cache_planner.h"
#include "scheduler/random_connector.h"

namespace quire {

void SchedulerChecker::operate() {
  switch (choose_(16)) {
    case 0:
    case 1:
    case 2:
    case 3:
      if (live_.size() < 12) add();
      break;
    case 4:
      if (!live_.empty()) abort();
      break;
    case 5: now_ += 0.5; break;
    case 6:
      if (choose_(4) == 0) scheduler_->set_pause_state(static_cast<PauseState>(choose_(3)));
      break;
    case 7:
      if (choose_(4) == 0) scheduler_->reset_prefix_cache();
      break;
    case 8:
    case 9:
    case 10:
    case 11:
      if (in_flight_.size() < static_cast<size_t>(config_.max_in_flight_steps)) schedule();
      break;
    default:
      if (!in_flight_.empty()) {
        collect(/*trouble=*/true);
      } else {
        schedule();
      }
  }
  check();
}

void SchedulerChecker::finish() {
  scheduler_->set_pause_state(PauseState::kUnpaused);
  draining_ = true;
  int64_t num_tokens = 0;
  for (const auto& [id, request] : live_) num_tokens += request.num_prompt_tokens + request.max_tokens;
  // A step computes at least one token; requests may be recomputed for each token of those before them.
  int64_t num_steps_left = 100 + num_tokens * static_cast<int64_t>(live_.size() + 2) * 4;
  while (scheduler_->has_unfinished_requests() || scheduler_->num_held_requests() > 0 ||
         !in_flight_.empty()) {
    require(num_steps_left-- > 0, "requests that never end: ", scheduler_->num_unfinished_requests());
    if (in_flight_.size() < static_cast<size_t>(config_.max_in_flight_steps)) schedule();
    if (!in_flight_.empty()) collect(/*trouble=*/false);
    check();
  }
  require(scheduler_->reset_prefix_cache(), "a block is still in use");
  require(scheduler_->lora_manager().num_running() == 0, "an adapter is still in use");
  const SchedulerStats stats = scheduler_->stats();
  require(stats.num_waiting_tokens == 0 && stats.num_prefill_tokens == 0 && stats.num_wasted_slots == 0 &&
              stats.num_used_slots == 0 && stats.num_waiting_reqs == 0,
          "counts of nothing are not 0");
  require(stats.num_free_blocks == num_free_at_start_, stats.num_free_blocks, " blocks of ",
          num_free_at_start_);
  if (config_.encoder_cache_size > 0) {
    MultiModalFeature whole{"whole", 0, config_.encoder_cache_size};
    require(scheduler_->encoder_cache_manager().can_allocate(whole.num_embeds),
            "encoder outputs are still held");
  }
}

std::string SchedulerChecker::describe() const {
  const SchedulerConfig& c = config_;
  std::string text =
      str(c.policy, " seqs=", c.max_num_seqs, " tokens=", c.max_num_batched_tokens,
          " flight=", c.max_in_flight_steps, " chunked=", c.enable_chunked_prefill,
          " threshold=", c.long_prefill_token_threshold, " partial=", c.max_num_partial_prefills, "/",
          c.max_long_partial_prefills, " caching=", c.enable_prefix_caching,
          " isl=", c.scheduler_reserve_full_isl, " watermark=", c.watermark,
          " lookahead=", c.num_lookahead_tokens, " drafts=", num_drafts_, " padding=", c.num_padding_drafts,
          " encoder=", c.max_num_encoder_input_tokens, "/", c.encoder_cache_size, "/",
          c.disable_chunked_mm_input, " loras=", c.max_loras, " awaited_loads=", c.max_awaited_lora_loads,
          " connector=", connector_ != nullptr, " blocks=", num_free_at_start_, " groups=", policies_.size());
  for (const auto& [id, model] : live_) {
    const Request& r = *scheduler_->find_request(id);
    text += str("\n  ", id, " ", status_name(r.status()), " tokens=", r.num_tokens(),
                " computed=", r.num_computed_tokens(), " placeholders=", r.num_output_placeholders(),
                " drafts=", r.spec_token_ids().size(), " slots=", r.num_slots(),
                " preempted=", r.num_preemptions(), " lora=", r.lora_id());
  }
  return text;
}

void SchedulerChecker::make_scheduler() {
  const auto pick = [this](std::initializer_list<int32_t> values) {
    return *(values.begin() + choose_(static_cast<uint32_t>(values.size())));
  };
  const int32_t block_size = pick({1, 4, 8});
  config_.max_model_len = 48;
  config_.max_num_seqs = pick({1, 3, 8});
  config_.max_num_batched_tokens = pick({8, 20, 64});
  config_.max_in_flight_steps = pick({1, 2, 3});
  static const char* const kPolicies[] = {"fcfs", "priority", "cache_aware", "fair"};
  config_.policy = kPolicies[choose_(4)];
  config_.enable_chunked_prefill = config_.max_num_batched_tokens < 64 || choose_(4) > 0;
  if (choose_(3) == 0) {
    config_.long_prefill_token_threshold = pick({3, 8});
    config_.max_long_partial_prefills = pick({0, 1});
  }
  if (choose_(4) == 0) config_.max_num_partial_prefills = 1;
  config_.enable_prefix_caching = choose_(4) > 0;
  config_.scheduler_reserve_full_isl = choose_(2) == 0;
  config_.watermark = choose_(4) == 0 ? 0.1F : 0.0F;
  config_.num_lookahead_tokens = pick({0, 0, 2});
  num_drafts_ = pick({0, 0, 3});
  config_.num_padding_drafts = choose_(6) == 0 ? 2 : 0;
  if (choose_(3) == 0) {
    config_.max_num_encoder_input_tokens = pick({8, 16});
    config_.encoder_cache_size = pick({8, 20});
    config_.disable_chunked_mm_input = choose_(3) == 0;
  }
  std::vector<KVCacheSpec> layers(1);
  layers[0].block_size = block_size;
  layers[0].page_bytes = 4096;
  const uint32_t kind = choose_(6);
  if (kind == 1 || kind == 3) {
    layers.push_back(layers[0]);
    layers.back().kind = KVCacheKind::kSlidingWindow;
    layers.back().sliding_window = pick({4, 9});
  }
  if (kind == 2 || kind == 3) {
    layers.push_back(layers[0]);
    layers.back().kind = KVCacheKind::kState;
  }
  if (kind == 4) layers[0].kind = KVCacheKind::kSlidingWindow, layers[0].sliding_window = 8;
  KVCacheDemand demand;
  demand.max_model_len = config_.max_model_len;
  demand.max_tokens_in_flight = config_.max_num_batched_tokens * config_.max_in_flight_steps;
  // Enough for one sequence, and not for many.
  demand.num_blocks = config_.max_model_len / block_size + 2 + pick({0, 3, 20});
  const KVCacheConfig kv_cache = plan_kv_cache(layers, demand);
  config_.validate(block_size);
  SchedulerParts parts;
  if (kind == 5) {
    connector_ = std::make_shared<Connector>(*this);
    parts.kv_connector = connector_;
    config_.kv_load_failure_policy = static_cast<SchedulerConfig::KVLoadFailure>(choose_(2));
    config_.num_padding_drafts = 0;
  }
  if (choose_(3) == 0) config_.max_loras = pick({1, 2, 4});
  if (choose_(2) == 0) config_.max_awaited_lora_loads = pick({0, 1});
  lora_slots_.resize(static_cast<size_t>(config_.max_loras));
  for (const KVCacheGroup& group : kv_cache.groups) policies_.emplace_back(group.spec);
  scheduler_ = std::make_unique<Scheduler>(config_, kv_cache, std::move(parts));
  num_free_at_start_ = scheduler_->stats().num_free_blocks;
}

void SchedulerChecker::add() {
  EngineCoreRequest request;
  request.request_id = ++last_id_;
  const auto length = static_cast<int32_t>(1 + choose_(40));
  const auto family = static_cast<int32_t>(choose_(3));
  for (int32_t i = 0; i < length; ++i)
    request.prompt_token_ids.edit().push_back(i < 24 ? family * 100 + i
                                                     : static_cast<int32_t>(1000 + choose_(50)));
  request.sampling_params.edit().max_tokens =
      1 + static_cast<int32_t>(choose_(static_cast<uint32_t>(config_.max_model_len - length)));
  request.eos_token_ids = {kEos};
  request.priority = static_cast<int32_t>(choose_(3)) - 1;
  request.arrival_time = now_;
  if (choose_(8) == 0) request.deadline = now_ + 1.0;
  request.user = std::string(1, static_cast<char>('a' + choose_(3)));
  if (choose_(4) == 0) request.cache_salt = "salt";
  if (config_.max_loras > 0) {
    request.lora_id = choose_(6);
    if (request.lora_id > 0) request.lora_name = str("adapter", request.lora_id);
  }
  if (config_.encoder_cache_size > 0) {
    for (int32_t at = static_cast<int32_t>(choose_(8)); at + 4 <= length && choose_(4) > 0; at += 5) {
      const int32_t num_embeds = std::min<int32_t>(4 + static_cast<int32_t>(choose_(5)), length - at);
      // A name says how long the input is, as content would.
      request.mm_features.push_back({str("image", choose_(4), "/", num_embeds), at, num_embeds});
      at += num_embeds;
    }
  }
  Model model;
  model.num_prompt_tokens = model.num_tokens = length;
  model.max_tokens = request.sampling_params->max_tokens;
  model.order = static_cast<int32_t>(last_id_);
  live_[last_id_] = model;
  scheduler_->add_request(std::move(request));
}

void SchedulerChecker::abort() {
  auto victim = live_.begin();
  std::advance(victim, choose_(static_cast<uint32_t>(live_.size())));
  require(scheduler_->finish_request(victim->first, RequestStatus::kFinishedAborted),
          "an unfinished request is unknown");
  end(victim->first);
}

void SchedulerChecker::end(RequestId id) {
  require(live_.erase(id) == 1, "request ", id, " ended twice");
  ++num_finished_;
}

void SchedulerChecker::collect(bool trouble) {
  Step step = std::move(in_flight_.front());
  in_flight_.pop_front();
  const SchedulerOutput& scheduler_output = step.scheduler_output;
  ModelRunnerOutput result;
  result.reset(scheduler_output.step_id);
  if (trouble && choose_(40) == 0) {
    step.failed = true;
    for (Step& behind : in_flight_) behind.failed = true;
  }
  for (size_t i = 0; i < scheduler_output.scheduled_reqs.size(); ++i) {
    const ScheduledRequest& s = scheduler_output.scheduled_reqs[i];
    std::vector<int32_t> tokens, drafts;
    if (s.samples) {
      const int32_t num_accepted =
          s.num_spec_tokens == 0
              ? 0
              : static_cast<int32_t>(choose_(static_cast<uint32_t>(s.num_spec_tokens + 1)));
      for (int32_t n = 0; n <= num_accepted; ++n)
        tokens.push_back(choose_(20) == 0 ? kEos : 2000 + static_cast<int32_t>(choose_(9)));
      drafts.assign(num_drafts_ == 0 ? 0 : choose_(static_cast<uint32_t>(num_drafts_ + 1)), 5);
    }
    if (trouble && choose_(60) == 0) result.errors.push_back({static_cast<uint32_t>(i), "injected"});
    result.add(s.request_id, tokens, drafts);
  }
  if (step.failed) {
    result.reset(scheduler_output.step_id);
    result.error = "injected";
  }
  if (connector_) report_transfers(step, result, trouble);
  // What the model expects of the requests of this step, before it knows how they end.
  std::map<RequestId, const Request*> before;
  for (const ScheduledRequest& s : scheduler_output.scheduled_reqs) {
    const auto model = live_.find(s.request_id);
    if (model == live_.end()) continue;
    before[s.request_id] = scheduler_->find_request(s.request_id);
  }
  EngineCoreOutputs outputs;
  scheduler_->update_from_output(scheduler_output, result, outputs);
  take_outputs(outputs);
  for (size_t i = 0; i < scheduler_output.scheduled_reqs.size() && !step.failed; ++i) {
    const ScheduledRequest& s = scheduler_output.scheduled_reqs[i];
    const auto found = live_.find(s.request_id);
    if (found == live_.end()) continue;
    Model& model = found->second;
    if (s.samples && model.num_sampling > 0) --model.num_sampling;
    if (model.num_computed >= 0 && s.samples && s.num_spec_tokens > 0)
      model.num_computed -= s.num_spec_tokens - (result.results[i].num_tokens - 1);
  }
  // A load that fails sets requests back, and drops results still to come: the model follows.
  if (connector_) {
    for (auto& [id, model] : live_) {
      const Request& request = *scheduler_->find_request(id);
      if (!request.is_running()) continue;
      model.num_computed = request.num_computed_tokens();
      model.num_sampling = request.num_output_placeholders();
    }
  }
  for (const auto& [id, model] : live_) {
    const Request& request = *scheduler_->find_request(id);
    require(request.num_tokens() == model.num_tokens, "request ", id, " has ", request.num_tokens(),
            " tokens, not ", model.num_tokens);
  }
}

void SchedulerChecker::report_transfers(Step& step, ModelRunnerOutput& result, bool trouble) {
  for (auto& [id, blocks] : step.loaded) {
    if (trouble && choose_(6) == 0)
      result.invalid_block_ids.push_back(blocks[choose_(static_cast<uint32_t>(blocks.size()))]);
  }
  for (auto load = connector_->loading.begin(); load != connector_->loading.end();) {
    if (trouble && choose_(2) == 0) {
      ++load;
      continue;
    }
    if (trouble && choose_(5) == 0)
      result.invalid_block_ids.push_back(load->second[choose_(static_cast<uint32_t>(load->second.size()))]);
    result.finished_recving.push_back(load->first);
    load = connector_->loading.erase(load);
  }
  for (auto id = connector_->sending.begin(); id != connector_->sending.end();) {
    if (trouble && choose_(2) == 0) {
      ++id;
      continue;
    }
    result.finished_sending.push_back(*id);
    id = connector_->sending.erase(id);
  }
}

}  // namespace quire
