#include <algorithm>

#include "engine/engine_impl.h"
#include "quire/engine.h"

namespace quire {

std::shared_ptr<KVArena> make_kv_arena(int64_t bytes) { return std::make_shared<KVArena>(bytes); }

EngineBase::EngineBase(const EngineConfig& config, bool threaded)
    : impl_(std::make_unique<Impl>(config, threaded)) {}
EngineBase::~EngineBase() {
  // In a child: the threads to wait for are not there, and locks may be held for ever.
  if (!impl_->owner.is_current()) (void)impl_.release();
}

const ModelDescription& EngineBase::model() const { return impl_->description; }
std::shared_ptr<const Tokenizer> EngineBase::tokenizer() const { return impl_->tokenizer; }

std::string EngineBase::apply_chat_template(const std::string& messages_json, const std::string& options_json,
                                            const std::string& chat_template) const {
  return impl_->chat_template_for(chat_template)->render(messages_json, options_json);
}

std::string EngineBase::apply_chat_template(const std::string& messages_json,
                                            const ChatTemplateOptions& options,
                                            const std::string& chat_template) const {
  return impl_->chat_template_for(chat_template)->render(messages_json, options);
}

EngineStats EngineBase::stats() const {
  impl_->owner.check();
  std::unique_lock lock(impl_->mutex);
  const int32_t num_waiting_for_lora = impl_->output_processor->num_waiting_for_lora();
  const int64_t num_tokens_waiting_for_lora = impl_->output_processor->num_tokens_waiting_for_lora();
  lock.unlock();
  const SchedulerStats s = impl_->core().stats();
  EngineStats stats;
  stats.num_steps = s.num_steps;
  stats.num_running_reqs = s.num_running_reqs;
  stats.num_waiting_reqs = s.num_waiting_reqs + num_waiting_for_lora;
  stats.num_waiting_tokens = s.num_waiting_tokens + num_tokens_waiting_for_lora;
  stats.num_free_blocks = s.num_free_blocks;
  stats.num_total_blocks = s.num_total_blocks;
  stats.kv_cache_usage = static_cast<double>(s.num_used_blocks) / std::max(s.num_total_blocks, 1);
  stats.kv_cache_waste = s.num_used_slots > 0
                             ? static_cast<double>(s.num_wasted_slots) / static_cast<double>(s.num_used_slots)
                             : 0.0;
  stats.num_preemptions = s.num_preemptions;
  stats.num_full_graph_steps = s.num_full_graph_steps;
  stats.num_piecewise_graph_steps = s.num_piecewise_graph_steps;
  stats.num_eager_steps = s.num_eager_steps;
  stats.num_expert_tokens = s.num_expert_tokens;
  stats.expert_load_imbalance = s.expert_load_imbalance;
  stats.num_scheduled_tokens = s.num_scheduled_tokens;
  stats.prefix_cache_queries = s.prefix_cache_queries;
  stats.prefix_cache_hits = s.prefix_cache_hits;
  stats.external_prefix_cache_hits = s.external_prefix_cache_hits;
  stats.num_generation_tokens = s.num_generation_tokens;
  stats.num_spec_tokens = s.num_spec_tokens;
  stats.num_accepted_spec_tokens = s.num_accepted_spec_tokens;
  stats.num_unknown_aborts = s.num_unknown_aborts + impl_->num_unknown_aborts;
  stats.num_expired_reqs = s.num_expired_reqs;
  return stats;
}

std::vector<ExpertLoad> EngineBase::expert_loads() const {
  std::vector<ExpertLoad> loads;
  impl_->core().call([&loads](EngineCore& core) { loads = core.expert_loads(); });
  return loads;
}

std::string EngineBase::dead_error() const {
  impl_->owner.check();
  const std::lock_guard lock(impl_->mutex);
  return impl_->error;
}

double EngineBase::seconds_since_progress() const { return impl_->core().seconds_since_progress(); }

void EngineBase::check_health(std::chrono::milliseconds timeout) const {
  if (const std::string error = dead_error(); !error.empty()) throw Error("the engine has ended: " + error);
  const double seconds = seconds_since_progress();
  if (seconds * 1000 <= static_cast<double>(timeout.count())) return;
  throw Error(str("a step has not come back for ", seconds, " s, which is more than the ", timeout.count(),
                  " ms that it may take: the engine hangs, or its steps are that slow"));
}

bool EngineBase::reset_prefix_cache() { return impl_->core().reset_prefix_cache(); }

void EngineBase::pause(PauseMode mode) {
  impl_->core().set_pause_state(mode == PauseMode::kKeep ? PauseState::kPausedAll : PauseState::kPausedNew);
}

void EngineBase::resume() {
  impl_->owner.check();
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->admission.draining = false;
  }
  impl_->client->set_pause_state(PauseState::kUnpaused);
}

void EngineBase::dump_flight_recorder(const std::string& path) { impl_->core().dump_flight_recorder(path); }

void EngineBase::shutdown() {
  if (impl_->owner.is_current()) impl_->shut_down();
}

bool EngineBase::add_lora(const LoraRequest& request) { return impl_->adapters().add(request); }
bool EngineBase::remove_lora(const std::string& lora_name) { return impl_->adapters().remove(lora_name); }
bool EngineBase::pin_lora(const std::string& lora_name) { return impl_->adapters().pin(lora_name); }
bool EngineBase::has_lora(const std::string& lora_name) const {
  return impl_->loras && impl_->adapters().has(lora_name);
}
std::vector<LoraInfo> EngineBase::list_loras() const { return impl_->adapters().list(); }

std::vector<KVCacheEvent> EngineBase::take_kv_events() {
  impl_->owner.check();
  const std::lock_guard lock(impl_->mutex);
  std::vector<KVCacheEvent> events(std::make_move_iterator(impl_->kv_events.begin()),
                                   std::make_move_iterator(impl_->kv_events.end()));
  impl_->kv_events.clear();
  return events;
}

}  // namespace quire
