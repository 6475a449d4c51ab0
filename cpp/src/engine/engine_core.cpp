#include "engine/engine_core.h"

#include "kv_cache/kv_cache_planner.h"
#include "util/check.h"
#include "util/log.h"

namespace quire {

EngineCore::EngineCore(const EngineConfig& config, std::unique_ptr<Executor> executor)
    : executor_(std::move(executor)) {
  const ModelInfo& model = executor_->model_info();
  if (!config.enable_chunked_prefill && config.max_num_batched_tokens < model.max_model_len) {
    throw InvalidArgument(str("max_num_batched_tokens ", config.max_num_batched_tokens,
                              " is less than max_model_len ", model.max_model_len,
                              ": raise it, or set enable_chunked_prefill"));
  }
  const int64_t bytes =
      config.kv_cache_memory_bytes > 0 ? config.kv_cache_memory_bytes : executor_->available_kv_cache_bytes();
  const int64_t max_useful_tokens = int64_t{config.max_num_seqs} * model.max_model_len;
  const KVCacheConfig kv_cache =
      plan_kv_cache(executor_->kv_cache_specs(), bytes, config.num_gpu_blocks_override, model.max_model_len,
                    max_useful_tokens);
  executor_->initialize_kv_cache(kv_cache);
  SchedulerConfig scheduler;
  scheduler.max_num_seqs = config.max_num_seqs;
  scheduler.max_num_batched_tokens = config.max_num_batched_tokens;
  scheduler.max_model_len = model.max_model_len;
  scheduler.enable_chunked_prefill = config.enable_chunked_prefill;
  scheduler.long_prefill_token_threshold = config.long_prefill_token_threshold;
  scheduler.enable_prefix_caching = config.enable_prefix_caching;
  scheduler.policy = config.scheduling_policy;
  scheduler_ = std::make_unique<Scheduler>(scheduler, kv_cache);
  log(LogLevel::kInfo, model.architecture, " in ", model.dtype, " on ", model.backend, ": max_model_len ",
      model.max_model_len, ", ", kv_cache.num_blocks, " KV blocks (",
      kv_cache.num_blocks * kv_cache.block_bytes(), " bytes)");
}

void EngineCore::add_request(EngineCoreRequest&& request) { scheduler_->add_request(std::move(request)); }

void EngineCore::abort_requests(std::span<const RequestId> request_ids) {
  for (RequestId id : request_ids) scheduler_->finish_request(id, RequestStatus::kFinishedAborted);
}

bool EngineCore::step_once(EngineCoreOutputs& outputs) {
  outputs.outputs.clear();
  outputs.engine_error.clear();
  const auto max_in_flight = static_cast<size_t>(executor_->max_in_flight_steps());
  if (in_flight_.size() < max_in_flight && step_error_.empty()) {
    if (free_plans_.empty()) free_plans_.push_back(std::make_unique<SchedulerOutput>());
    SchedulerOutput& plan = *free_plans_.back();
    scheduler_->schedule(plan);
    if (plan.total_num_scheduled_tokens > 0) {
      executor_->launch(plan);
      executor_->sample(plan.step_id, nullptr);
      in_flight_.push_back(std::move(free_plans_.back()));
      free_plans_.pop_back();
      // Another step may fit behind it before anyone waits.
      if (in_flight_.size() < max_in_flight) return true;
    }
  }
  if (in_flight_.empty()) return false;

  executor_->collect(in_flight_.front()->step_id, result_);
  if (!result_.error.empty()) {
    log(LogLevel::kError, "step ", result_.step_id, " failed: ", result_.error);
    step_error_ = result_.error;
  }
  result_.error = step_error_;
  scheduler_->update_from_output(*in_flight_.front(), result_, outputs);
  free_plans_.push_back(std::move(in_flight_.front()));
  in_flight_.pop_front();
  if (in_flight_.empty()) step_error_.clear();
  outputs.scheduler_stats = scheduler_->stats();
  return true;
}

}  // namespace quire
