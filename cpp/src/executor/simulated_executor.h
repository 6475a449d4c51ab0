// An executor without a model: a step costs what a cost model says, and time is a number.
//
// It behaves as the local one towards its caller, so the real scheduler (or a whole engine core) runs on it.
// What it adds is a clock: the caller says what time it is when it launches, and asks when the oldest step
// will be done. Nothing here waits.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "executor/executor.h"
#include "util/ring_queue.h"

namespace quire {

// What a step has to do, as far as its time depends on it.
struct StepLoad {
  int64_t num_tokens = 0;      // to compute
  int64_t num_reqs = 0;        // in the step
  int64_t context_tokens = 0;  // keys and values read: each request's tokens up to the end of its part
};

// Seconds of a step: a sum of what each kind of work costs. All coefficients are at least 0.
struct StepCostModel {
  double seconds_per_step = 0.0;
  double seconds_per_token = 0.0;
  double seconds_per_request = 0.0;
  double seconds_per_context_token = 0.0;
  // The host's part between two steps: added to each, unless another step is in flight to hide it.
  double host_seconds_per_step = 0.0;

  double seconds(const StepLoad& load) const {
    return seconds_per_step + seconds_per_token * static_cast<double>(load.num_tokens) +
           seconds_per_request * static_cast<double>(load.num_reqs) +
           seconds_per_context_token * static_cast<double>(load.context_tokens);
  }
};

struct SimulatedExecutorConfig {
  StepCostModel cost_model;
  int32_t max_model_len = 0;
  int32_t block_size = 0;
  int32_t num_blocks = 0;  // memory for these, block 0 included
  int32_t max_in_flight_steps = 1;
};

// Virtual time is whole nanoseconds: sums are exact, whatever their order.
class SimulatedExecutor final : public Executor {
 public:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  explicit SimulatedExecutor(const SimulatedExecutorConfig& config);

  // When the next steps are launched; never goes back.
  void set_time(int64_t now_ns) { now_ns_ = now_ns; }
  // When the oldest step that was not collected is done; kNever without one.
  int64_t next_finish_ns() { return steps_.empty() ? kNever : steps_.front().finish_ns; }
  // What the step launched last computes.
  const StepLoad& last_load() const { return last_load_; }
  // Time that the device has spent, or will have when all that was launched is done.
  int64_t busy_ns() const { return busy_ns_; }

  // Executor. Each request that samples gets one token: some function of its id and place.
  const ModelInfo& model_info() const override { return model_info_; }
  std::vector<KVCacheSpec> kv_cache_specs() const override;
  int64_t available_kv_cache_bytes() const override;
  void initialize_kv_cache(const KVCacheConfig&) override {}
  int32_t max_in_flight_steps() const override { return config_.max_in_flight_steps; }
  void launch(const SchedulerOutput& scheduler_output) override;
  void sample(StepId, const GrammarOutput*) override {}  // any token does
  // The oldest step's result, whatever the clock says.
  void collect(StepId step_id, ModelRunnerOutput& output) override;

 private:
  struct Step {
    int64_t finish_ns = 0;
    ModelRunnerOutput result;
  };

  SimulatedExecutorConfig config_;
  ModelInfo model_info_;
  int64_t now_ns_ = 0;
  int64_t device_free_ns_ = 0;  // when the steps launched so far are done
  int64_t busy_ns_ = 0;
  StepLoad last_load_;
  RingQueue<Step> steps_;
};

}  // namespace quire
