#include "simulator/simulated_engine.h"

#include <algorithm>
#include <utility>

#include "kv_cache/kv_cache_planner.h"
#include "util/check.h"

namespace quire {
namespace {

KVCacheConfig size_kv_cache(const SimulatedEngineConfig& config, const SimulatedExecutor& executor) {
  KVCacheDemand demand;
  demand.num_blocks = config.num_blocks;
  demand.max_model_len = config.scheduler.max_model_len;
  demand.max_useful_tokens = int64_t{config.scheduler.max_num_seqs} * config.scheduler.max_model_len;
  demand.max_tokens_in_flight =
      config.scheduler.max_num_batched_tokens * config.scheduler.max_in_flight_steps;
  demand.granule_bytes = 1;
  return plan_kv_cache(executor.kv_cache_specs(), demand);
}

double to_seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

}  // namespace

SimulatedEngine::SimulatedEngine(const SimulatedEngineConfig& config, const Trace& trace,
                                 std::vector<int64_t>& last_token_ns, Metrics& metrics)
    : config_(config),
      trace_(trace),
      last_token_ns_(last_token_ns),
      metrics_(metrics),
      executor_({config.cost_model, config.scheduler.max_model_len, config.block_size, config.num_blocks,
                 config.scheduler.max_in_flight_steps}),
      scheduler_(config.scheduler, size_kv_cache(config, executor_)),
      ring_(static_cast<size_t>(config.scheduler.max_in_flight_steps)),
      stats_(scheduler_.stats()) {}

void SimulatedEngine::add_request(size_t index, std::vector<int32_t>&& prompt) {
  const TraceRequest& traced = trace_.requests[index];
  const int64_t now_ns = traced.arrival_ns;
  const auto max_queued = static_cast<size_t>(config_.max_queued_requests);
  if (traced.prompt_len >= config_.scheduler.max_model_len ||
      (max_queued > 0 && scheduler_.num_unfinished_requests() >= max_queued)) {
    ++metrics_.num_refused;
    return;
  }
  EngineCoreRequest request;
  request.request_id = index;
  request.prompt_token_ids = std::move(prompt);
  const int32_t max_tokens = std::min(traced.output_len, config_.scheduler.max_model_len - traced.prompt_len);
  request.sampling_params.edit().max_tokens = max_tokens;
  request.priority = traced.priority;
  request.arrival_time = to_seconds(now_ns);
  if (traced.deadline_ns > 0) request.deadline = to_seconds(now_ns + traced.deadline_ns);
  request.user = trace_.users[static_cast<size_t>(traced.user)];
  integrate_until(now_ns);
  num_output_tokens_to_do_ += max_tokens;
  if (traced.deadline_ns > 0) num_left_[request.request_id] = max_tokens;
  scheduler_.add_request(std::move(request));
  ++num_requests_;
  stats_ = scheduler_.stats();
  if (num_in_flight_ < ring_.size()) wake_ns_ = now_ns;
}

void SimulatedEngine::process_event() {
  const int64_t now_ns = next_event_ns();
  integrate_until(now_ns);
  wake_ns_ = kNever;
  outputs_.clear();
  scheduler_.advance(to_seconds(now_ns), outputs_);
  if (executor_.next_finish_ns() <= now_ns) {
    const SchedulerOutput& scheduler_output = ring_[first_in_flight_];
    executor_.collect(scheduler_output.step_id, result_);
    scheduler_.update_from_output(scheduler_output, result_, outputs_);
    first_in_flight_ = (first_in_flight_ + 1) % ring_.size();
    --num_in_flight_;
  }
  record_outputs(now_ns);
  launch_steps(now_ns);
  stats_ = scheduler_.stats();
  metrics_.peak_used_blocks =
      std::max<int64_t>(metrics_.peak_used_blocks, stats_.num_total_blocks - stats_.num_free_blocks);
  metrics_.peak_running_reqs = std::max<int64_t>(metrics_.peak_running_reqs, stats_.num_running_reqs);
}

void SimulatedEngine::launch_steps(int64_t now_ns) {
  executor_.set_time(now_ns);
  while (num_in_flight_ < ring_.size()) {
    SchedulerOutput& scheduler_output = ring_[(first_in_flight_ + num_in_flight_) % ring_.size()];
    if (!scheduler_.schedule(scheduler_output)) break;
    executor_.launch(scheduler_output);
    ++num_in_flight_;
    for (const NewRequestData& started : scheduler_output.scheduled_new_reqs)
      metrics_.queue_time.add(now_ns - trace_.requests[started.request_id].arrival_ns);
  }
  QUIRE_CHECK(num_in_flight_ > 0 || !scheduler_.has_unfinished_requests(),
              scheduler_.num_unfinished_requests(), " requests wait, and none can be scheduled");
}

void SimulatedEngine::record_outputs(int64_t now_ns) {
  for (const EngineCoreOutput& output : outputs_.outputs) {
    const TraceRequest& traced = trace_.requests[output.request_id];
    if (output.num_tokens > 0) {
      int64_t& last_ns = last_token_ns_[output.request_id];
      if (last_ns < 0) {
        metrics_.ttft.add(now_ns - traced.arrival_ns);
      } else {
        metrics_.itl.add(now_ns - last_ns);
      }
      last_ns = now_ns;
      num_output_tokens_to_do_ -= output.num_tokens;
      metrics_.num_output_tokens += output.num_tokens;
      if (traced.deadline_ns > 0) num_left_[output.request_id] -= output.num_tokens;
    }
    if (output.finish_reason == FinishReason::kNone) continue;
    if (traced.deadline_ns > 0) {
      num_output_tokens_to_do_ -= num_left_[output.request_id];  // what it will never be given
      num_left_.erase(output.request_id);
    }
    if (output.finish_reason == FinishReason::kAbort) {
      ++metrics_.num_expired;
      continue;
    }
    QUIRE_CHECK(output.finish_reason == FinishReason::kLength, *output.error);
    ++metrics_.num_finished;
    metrics_.num_prompt_tokens += traced.prompt_len;
    metrics_.e2e.add(now_ns - traced.arrival_ns);
  }
}

// What was held since the last event, weighed by how long.
void SimulatedEngine::integrate_until(int64_t now_ns) {
  const int64_t begin_ns = std::exchange(integrated_until_ns_, now_ns);
  if (begin_ns == now_ns || (stats_.num_running_reqs == 0 && stats_.num_waiting_reqs == 0)) return;
  const int64_t elapsed_ns = now_ns - begin_ns;
  const auto integral = [elapsed_ns](int64_t value) { return static_cast<__int128>(value) * elapsed_ns; };
  const int64_t used_blocks = stats_.num_total_blocks - stats_.num_free_blocks;
  metrics_.used_blocks += integral(used_blocks);
  metrics_.used_slots += integral(stats_.num_used_slots);
  metrics_.wasted_slots += integral(stats_.num_wasted_slots);
  metrics_.running_reqs += integral(stats_.num_running_reqs);
  const StepLoad& load = executor_.last_load();
  metrics_.contiguous_slots += integral(load.num_reqs * config_.scheduler.max_model_len);
  metrics_.contiguous_tokens += integral(load.context_tokens);
  metrics_.timeline.add(begin_ns, now_ns, {stats_.num_running_reqs, stats_.num_waiting_reqs, used_blocks});
}

void SimulatedEngine::finish() {
  QUIRE_CHECK(!scheduler_.has_unfinished_requests() && num_in_flight_ == 0);
  QUIRE_CHECK(stats_.num_free_blocks == stats_.num_total_blocks, "blocks are missing");
  metrics_.num_steps += static_cast<int64_t>(stats_.num_steps);
  metrics_.num_scheduled_tokens += static_cast<int64_t>(stats_.num_scheduled_tokens);
  metrics_.num_preemptions += static_cast<int64_t>(stats_.num_preemptions);
  metrics_.prefix_cache_queries += static_cast<int64_t>(stats_.prefix_cache_queries);
  metrics_.prefix_cache_hits += static_cast<int64_t>(stats_.prefix_cache_hits);
  metrics_.busy_ns += executor_.busy_ns();
  metrics_.end_ns = std::max(metrics_.end_ns, integrated_until_ns_);
  ++metrics_.num_engines;
  metrics_.most_requests = std::max(metrics_.most_requests, num_requests_);
  metrics_.fewest_requests = std::min(metrics_.fewest_requests, num_requests_);
  const auto num_tokens = static_cast<int64_t>(stats_.num_scheduled_tokens);
  metrics_.most_tokens = std::max(metrics_.most_tokens, num_tokens);
  metrics_.fewest_tokens = std::min(metrics_.fewest_tokens, num_tokens);
}

}  // namespace quire
