#include "engine/engine_core.h"

#include <algorithm>
#include <chrono>
#include <functional>

#include "engine/kv_cache_demand.h"
#include "messages/memory_log.h"
#include "util/check.h"
#include "util/log.h"

namespace quire {
namespace {

// In a row: an engine that answers nothing but errors is no engine, and whoever watches it should know.
constexpr int32_t kMaxFailedSteps = 8;

SchedulerConfig scheduler_config(const EngineConfig& config, const Executor& executor) {
  const ModelInfo& model = executor.model_info();
  SchedulerConfig scheduler;
  scheduler.max_num_seqs = config.max_num_seqs.value_or(model.max_num_seqs);
  scheduler.max_num_batched_tokens = config.max_num_batched_tokens.value_or(model.max_num_batched_tokens);
  scheduler.max_model_len = model.max_model_len;
  scheduler.max_in_flight_steps = executor.max_in_flight_steps();
  scheduler.policy = config.scheduling_policy;
  scheduler.enable_chunked_prefill = config.enable_chunked_prefill;
  scheduler.long_prefill_token_threshold = config.long_prefill_token_threshold;
  scheduler.max_num_partial_prefills = config.max_num_partial_prefills;
  scheduler.max_long_partial_prefills = config.max_long_partial_prefills;
  scheduler.enable_prefix_caching = config.enable_prefix_caching;
  scheduler.enable_kv_cache_events = config.enable_kv_cache_events;
  scheduler.scheduler_reserve_full_isl = config.scheduler_reserve_full_isl;
  scheduler.watermark = config.watermark;
  scheduler.max_loras = config.enable_lora ? config.max_loras : 0;
  // Behind a step in flight, one copy is over when it is needed.
  if (executor.copies_loras()) scheduler.max_awaited_lora_loads = scheduler.max_in_flight_steps - 1;
  return scheduler;
}

std::shared_ptr<KVConnectorScheduler> make_kv_connector(const EngineConfig& config,
                                                        const KVCacheConfig& kv_cache) {
  KVConnectorConfig connector;
  connector.config = config.kv_connector_config;
  connector.model = config.model;
  connector.world_size = config.tensor_parallel_size;
  for (const KVCacheGroup& group : kv_cache.groups)
    connector.group_block_sizes.push_back(group.spec.block_size);
  connector.hash_block_size = *std::ranges::min_element(connector.group_block_sizes);
  return find_kv_connector(config.kv_connector).make_scheduler(connector);
}

}  // namespace

double EngineCore::steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

EngineCore::EngineCore(const EngineConfig& config, std::unique_ptr<Executor> executor, SchedulerParts parts,
                       std::function<double()> clock)
    : clock_(std::move(clock)), executor_(std::move(executor)) {
  const ModelInfo& model = executor_->model_info();
  SchedulerConfig scheduler = scheduler_config(config, *executor_);
  const auto specs = executor_->kv_cache_specs();
  int32_t largest_block = 0;
  for (const KVCacheSpec& spec : specs) largest_block = std::max(largest_block, spec.block_size);
  scheduler.validate(largest_block);

  const KVCacheDemand demand = kv_cache_demand(
      config, model, specs, executor_->max_in_flight_steps(), executor_->maps_kv_cache_on_demand(),
      config.kv_cache_memory_bytes > 0 ? 0 : executor_->available_kv_cache_bytes());
  parts.kv_arena = config.kv_arena;
  const KVCacheConfig kv_cache = [&] {
    try {
      return plan_engine_kv_cache(config, specs, demand);
    } catch (const InvalidArgument& refused) {
      log_memory_table(model.memory);
      throw InvalidArgument(str(refused.what(), "; besides the KV cache: ", memory_text(model.memory)));
    }
  }();
  scheduler.max_num_seqs = seqs_at_once(config, model, kv_cache.groups[0].num_blocks - 1);
  executor_->initialize_kv_cache(kv_cache);
  expert_meter_ = ExpertMeter(executor_->expert_loads());
  parts.hash_seed = make_hash_seed(config.prefix_caching_hash_seed);
  if (!config.kv_connector.empty()) parts.kv_connector = make_kv_connector(config, kv_cache);
  const bool records = config.flight_recorder_bytes > 0;
  std::shared_ptr<RecordedKVConnector> recorded_connector;
  if (records && parts.kv_connector) {
    recorded_connector = std::make_shared<RecordedKVConnector>(std::move(parts.kv_connector));
    parts.kv_connector = recorded_connector;
  }
  scheduler_ = std::make_unique<Scheduler>(scheduler, kv_cache, std::move(parts));
  if (records) {
    RecordingHeader header;
    header.model = str(model.architecture, " in ", model.dtype, " on ", model.backend);
    header.unix_time_of_zero =
        std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count() - clock_();
    header.shares_arena = config.kv_arena != nullptr;
    header.has_kv_connector = recorded_connector != nullptr;
    header.scheduler = scheduler;
    header.kv_cache = kv_cache;
    recorder_ = std::make_unique<SchedulerRecorder>(
        config, header, *scheduler_,
        [this](size_t i) -> const SchedulerOutput& { return *in_flight_[i].scheduler_output; },
        std::move(recorded_connector));
    const double now = clock_();
    EngineCoreOutputs nothing;
    scheduler_->advance(now, nothing);
    recorder_->begin_step(now);
  }
  log(LogLevel::kInfo, model.architecture, " in ", model.dtype, " on ", model.backend, ": max_model_len ",
      model.max_model_len, ", max_num_seqs ", scheduler.max_num_seqs, ", max_num_batched_tokens ",
      scheduler.max_num_batched_tokens, ", ", kv_cache.groups.size(), " KV cache group(s), ",
      kv_cache.groups[0].num_blocks - 1, " blocks (", kv_cache.bytes, " bytes)");
}

void EngineCore::add_request(EngineCoreRequest&& request) {
  if (request.sampling_params->beam_width <= 1) return add_to_scheduler(std::move(request));
  beam_groups_.add(std::move(request), beam_actions_);
  apply_beam_actions();
}

void EngineCore::add_to_scheduler(EngineCoreRequest&& request) {
  const RequestId id = request.request_id;
  const double queue_deadline = request.queue_deadline;
  scheduler_->add_request(std::move(request));
  if (queue_deadline > 0) {
    queue_deadlines_.emplace_back(queue_deadline, id);
    std::push_heap(queue_deadlines_.begin(), queue_deadlines_.end(), std::greater<>());
  }
  if (recorder_) recorder_->added(id);
}

void EngineCore::abort_requests(std::span<const RequestId> request_ids) {
  for (size_t i = 0; i < request_ids.size();) {
    const RequestId id = request_ids[i];
    const size_t num_answers = beam_groups_.empty() ? 0 : beam_groups_.abort(id, beam_actions_);
    if (num_answers == 0) {
      abort_in_scheduler(id);
      ++i;
      continue;
    }
    apply_beam_actions();
    while (i < request_ids.size() && request_ids[i] - id < num_answers) ++i;
  }
}

void EngineCore::abort_in_scheduler(RequestId id) {
  const bool known = scheduler_->finish_request(id, RequestStatus::kFinishedAborted);
  if (known && recorder_) recorder_->aborted(id, RequestStatus::kFinishedAborted);
}

void EngineCore::apply_beam_actions() {
  for (EngineCoreRequest& request : beam_actions_.to_add) add_to_scheduler(std::move(request));
  // Some have ended with what ended the search.
  for (RequestId id : beam_actions_.to_finish)
    if (scheduler_->find_request(id)) abort_in_scheduler(id);
  beam_actions_.clear();
}

void EngineCore::set_pause_state(PauseState state) {
  scheduler_->set_pause_state(state);
  if (recorder_) recorder_->paused(state);
}

bool EngineCore::reset_prefix_cache() {
  const bool done = scheduler_->reset_prefix_cache();
  if (done && recorder_) recorder_->reset_prefix_cache();
  return done;
}

void EngineCore::sleep(int32_t level) {
  QUIRE_CHECK(!has_unfinished_requests(), "a request is unfinished");
  if (!reset_prefix_cache()) {
    throw InvalidArgument(
        "the engine cannot sleep: the KV connector still loads or sends blocks of finished requests; try "
        "again");
  }
  executor_->sleep(level);
}

void EngineCore::update_weights(const WeightSource& source) {
  executor_->check_weights(source);
  scheduler_->preempt_all();
  if (!reset_prefix_cache())
    throw InvalidArgument("weights cannot be changed while a request waits with blocks; try again");
  executor_->load_weights(source);
}

void EngineCore::dump_flight_recorder(const std::string& path) const {
  if (!recorder_) {
    throw InvalidArgument("there is no flight recorder: flight_recorder_bytes is 0");
  }
  recorder_->dump(path);
}

void EngineCore::dump_after_failure() const {
  if (recorder_) recorder_->dump_after("the engine has failed");
}

bool EngineCore::step_once(EngineCoreOutputs& outputs) {
  outputs.clear();
  const double now = clock_();
  outputs.timestamp = now;
  scheduler_->advance(now, outputs);
  end_what_waits_too_long(now, outputs);
  if (recorder_) {
    // Told as aborts, a replay need not know when the clock was looked at.
    for (const EngineCoreOutput& output : outputs.outputs)
      recorder_->aborted(output.request_id, RequestStatus::kFinishedAborted);
    for (RequestId id : scheduler_->grammars_ready()) recorder_->grammar_ready(id);
    recorder_->begin_step(now);
  }
  const auto max_in_flight = static_cast<size_t>(executor_->max_in_flight_steps());
  const bool may_launch =
      !holds_launches_ &&
      (in_flight_.empty() || (in_flight_.size() < max_in_flight && in_flight_.back().is_sampled));
  const bool launched = may_launch && step_error_.empty() && launch_step(now);
  // Another step may fit behind it before anyone waits.
  const bool collects = !in_flight_.empty() && !(launched && in_flight_.size() < max_in_flight);
  if (collects) collect_step(outputs);
  // Its masks had to wait for the tokens just collected; the forward pass did not.
  if (!in_flight_.empty() && !in_flight_.back().is_sampled) sample_step();
  if (!beam_groups_.empty()) {
    beam_groups_.take_outputs(outputs, beam_actions_);
    apply_beam_actions();
  }
  outputs.scheduler_stats = stats();
  scheduler_->count_running_loras(outputs.running_loras);
  return launched || collects || !outputs.outputs.empty();
}

void EngineCore::end_what_waits_too_long(double now, EngineCoreOutputs& outputs) {
  while (!queue_deadlines_.empty() && queue_deadlines_.front().first <= now) {
    const RequestId id = queue_deadlines_.front().second;
    std::pop_heap(queue_deadlines_.begin(), queue_deadlines_.end(), std::greater<>());
    queue_deadlines_.pop_back();
    const Request* request = scheduler_->find_request(id);
    if (!request || request->first_scheduled_time() >= 0) continue;  // preempted ones have begun, too
    scheduler_->finish_request(id, RequestStatus::kFinishedAborted);
    EngineCoreOutput& output = outputs.outputs.emplace_back();
    output.request_id = id;
    output.finish_reason = FinishReason::kAbort;
    output.error = std::string("queue_timeout_ms has passed before its first step");
  }
}

bool EngineCore::launch_step(double now) {
  if (free_scheduler_outputs_.empty()) free_scheduler_outputs_.push_back(std::make_unique<SchedulerOutput>());
  SchedulerOutput& scheduler_output = *free_scheduler_outputs_.back();
  const bool launches = scheduler_->schedule(scheduler_output);
  if (recorder_) recorder_->scheduled(now, scheduler_output, launches);
  if (!launches) return false;
  LaunchedStep& step = in_flight_.push();
  step.scheduler_output = std::move(free_scheduler_outputs_.back());
  step.launch_time = now;
  free_scheduler_outputs_.pop_back();
  executor_->launch(scheduler_output);
  sample_step();
  return true;
}

void EngineCore::sample_step() {
  LaunchedStep& step = in_flight_.back();
  const SchedulerOutput& scheduler_output = *step.scheduler_output;
  if (!scheduler_->samples_by_grammar(scheduler_output)) {
    step.grammar_output.reset();
  } else if (in_flight_.size() > 1) {
    step.is_sampled = false;
    return;
  } else {
    if (free_grammar_outputs_.empty()) free_grammar_outputs_.push_back(std::make_unique<GrammarOutput>());
    step.grammar_output = std::move(free_grammar_outputs_.back());
    free_grammar_outputs_.pop_back();
    scheduler_->make_grammar_output(scheduler_output, *step.grammar_output);
  }
  step.is_sampled = true;
  executor_->sample(scheduler_output.step_id, step.grammar_output.get());
}

SchedulerStats EngineCore::stats() const {
  SchedulerStats stats = scheduler_->stats();
  const auto steps_in = [this](CudagraphMode mode) { return num_steps_by_mode_[static_cast<size_t>(mode)]; };
  stats.num_full_graph_steps = steps_in(CudagraphMode::kFull);
  stats.num_piecewise_graph_steps = steps_in(CudagraphMode::kPiecewise);
  stats.num_eager_steps = steps_in(CudagraphMode::kNone);
  stats.num_expert_tokens = expert_meter_.num_expert_tokens();
  if (stats.num_running_reqs > 0) stats.expert_load_imbalance = expert_meter_.imbalance();
  return stats;
}

void EngineCore::collect_step(EngineCoreOutputs& outputs) {
  LaunchedStep& step = in_flight_.front();
  const SchedulerOutput& scheduler_output = *step.scheduler_output;
  executor_->collect(scheduler_output.step_id, result_);
  const double now = clock_();
  // A step that was launched while another ran began when that one ended.
  if (scheduler_output.total_num_scheduled_tokens > 0) {
    scheduler_->observe_step(scheduler_output.total_num_scheduled_tokens,
                             now - std::max(step.launch_time, last_collect_time_));
  }
  last_collect_time_ = now;
  outputs.timestamp = now;
  if (!result_.error.empty()) {
    log(LogLevel::kError, "step ", result_.step_id, " failed: ", result_.error);
    step_error_ = result_.error;
    if (result_.worker_lost != 0) throw InternalError(result_.error);
    if (++num_failed_steps_ >= kMaxFailedSteps)
      throw InternalError(str(num_failed_steps_, " steps in a row failed, the last one: ", result_.error));
  } else if (step_error_.empty() && scheduler_output.total_num_scheduled_tokens > 0) {
    num_failed_steps_ = 0;
  }
  if (!step_error_.empty()) result_.error = step_error_;
  if (result_.has_cudagraphs != 0 && scheduler_output.total_num_scheduled_tokens > 0)
    ++num_steps_by_mode_[static_cast<size_t>(result_.cudagraph_mode)];
  const size_t first_output = outputs.outputs.size();
  scheduler_->update_from_output(scheduler_output, result_, outputs);
  if (recorder_) recorder_->collected(now, scheduler_output, result_, outputs, first_output);
  free_scheduler_outputs_.push_back(std::move(step.scheduler_output));
  if (step.grammar_output) free_grammar_outputs_.push_back(std::move(step.grammar_output));
  in_flight_.pop();
  if (in_flight_.empty()) step_error_.clear();
  if (expert_meter_.is_due(now, !has_unfinished_requests()))
    expert_meter_.observe(executor_->expert_loads(), now);
}

}  // namespace quire
