#include "executor/simulated_executor.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "util/check.h"

namespace quire {
namespace {

int64_t to_ns(double seconds) { return std::llround(seconds * 1e9); }

// Tokens that differ between requests and places, so that no two outputs look like one prefix.
int32_t sampled_token(RequestId request_id, int32_t position) {
  const uint64_t mixed =
      (request_id + 1) * 0x9E3779B97F4A7C15 + static_cast<uint64_t>(position) * 0xD1B54A32D192ED03;
  return static_cast<int32_t>((mixed ^ (mixed >> 29)) >> 33);
}

}  // namespace

SimulatedExecutor::SimulatedExecutor(const SimulatedExecutorConfig& config) : config_(config) {
  model_info_.architecture = "Simulated";
  model_info_.backend = "simulated";
  model_info_.dtype = "none";
  model_info_.vocab_size = std::numeric_limits<int32_t>::max();
  model_info_.max_model_len = config.max_model_len;
}

// One layer, one byte a token: only the number of blocks matters.
std::vector<KVCacheSpec> SimulatedExecutor::kv_cache_specs() const {
  KVCacheSpec spec;
  spec.block_size = config_.block_size;
  spec.page_bytes = config_.block_size;
  spec.num_kv_heads = spec.head_size = 1;
  spec.dtype = model_info_.dtype;
  spec.layout = "simulated";
  return {spec};
}

int64_t SimulatedExecutor::available_kv_cache_bytes() const {
  return int64_t{config_.num_blocks} * config_.block_size;
}

void SimulatedExecutor::launch(const SchedulerOutput& scheduler_output) {
  QUIRE_CHECK(steps_.size() < static_cast<size_t>(config_.max_in_flight_steps), "step ",
              scheduler_output.step_id);
  Step& step = steps_.push();
  step.result.reset(scheduler_output.step_id);
  StepLoad load;
  load.num_reqs = static_cast<int64_t>(scheduler_output.scheduled_reqs.size());
  for (const ScheduledRequest& scheduled : scheduler_output.scheduled_reqs) {
    const int32_t end = scheduled.num_computed_tokens + scheduled.num_tokens;
    load.num_tokens += scheduled.num_tokens;
    load.context_tokens += end;
    const int32_t token = sampled_token(scheduled.request_id, end);
    step.result.add(scheduled.request_id, {&token, scheduled.samples ? 1U : 0U});
  }
  const int64_t device_ns = to_ns(config_.cost_model.seconds(load));
  const int64_t ready_ns = now_ns_ + to_ns(config_.cost_model.host_seconds_per_step);
  step.finish_ns = std::max(ready_ns, device_free_ns_) + device_ns;
  device_free_ns_ = step.finish_ns;
  busy_ns_ += device_ns;
  last_load_ = load;
}

void SimulatedExecutor::collect(StepId step_id, ModelRunnerOutput& output) {
  QUIRE_CHECK(!steps_.empty() && steps_.front().result.step_id == step_id, "step ", step_id,
              " is not the oldest");
  std::swap(output, steps_.front().result);  // the caller's old buffers are the next step's
  steps_.pop();
}

}  // namespace quire
