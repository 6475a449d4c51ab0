// One engine in virtual time: the real scheduler over the simulated executor.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "executor/simulated_executor.h"
#include "messages/engine_core_messages.h"
#include "scheduler/scheduler.h"
#include "simulator/metrics.h"
#include "simulator/trace.h"

namespace quire {

struct SimulatedEngineConfig {
  SchedulerConfig scheduler;  // max_in_flight_steps is 2 with asynchronous scheduling
  int32_t block_size = 16;
  int32_t num_blocks = 4096;  // block 0 included
  int32_t max_queued_requests = 0;
  StepCostModel cost_model;
};

// Driven by events, as EngineCore is by its loop: a step that is done, or a request that finds it idle. Not
// thread-safe; engines share nothing but `trace` and their own requests' places in `last_token_ns`.
class SimulatedEngine {
 public:
  static constexpr int64_t kNever = SimulatedExecutor::kNever;

  // `last_token_ns` has a place for each request of the trace: when it had its last token, or -1. Adds what
  // it measures to `metrics`. Throws InvalidArgument for a contradictory configuration.
  SimulatedEngine(const SimulatedEngineConfig& config, const Trace& trace,
                  std::vector<int64_t>& last_token_ns, Metrics& metrics);

  // A request of the trace arrives, no earlier than the last event. `prompt` is its tokens.
  void add_request(size_t index, std::vector<int32_t>&& prompt);

  int64_t next_event_ns() { return std::min(wake_ns_, executor_.next_finish_ns()); }
  void process_event();

  // Prompt tokens not yet computed, and output tokens not yet sampled, of all its requests: as if a router
  // knew how long answers will be.
  int64_t num_tokens_to_do() const {
    return stats_.num_waiting_tokens + stats_.num_prefill_tokens + num_output_tokens_to_do_;
  }

  // After the last event: adds what is counted once. Nothing is left to do.
  void finish();

 private:
  void launch_steps(int64_t now_ns);
  void record_outputs(int64_t now_ns);
  void integrate_until(int64_t now_ns);

  const SimulatedEngineConfig& config_;
  const Trace& trace_;
  std::vector<int64_t>& last_token_ns_;
  Metrics& metrics_;
  SimulatedExecutor executor_;
  Scheduler scheduler_;

  std::vector<SchedulerOutput> ring_;  // steps in flight, the oldest at first_in_flight_
  size_t first_in_flight_ = 0;
  size_t num_in_flight_ = 0;
  ModelRunnerOutput result_;
  EngineCoreOutputs outputs_;

  int64_t wake_ns_ = kNever;  // a request came, and there is room for a step
  int64_t integrated_until_ns_ = 0;
  SchedulerStats stats_;  // after the last event
  int64_t num_output_tokens_to_do_ = 0;
  std::unordered_map<RequestId, int32_t> num_left_;  // output tokens to do of each request that may expire
  int64_t num_requests_ = 0;
};

}  // namespace quire
