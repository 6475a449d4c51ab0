// START HERE. One step is: schedule, execute, update.
//
// Token ids in, token ids out; text stays with the front end. Not thread-safe: the inline driver calls it
// from the user's thread, the threaded one from a thread of its own (engine_core_client.h).
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/beam_groups.h"
#include "engine/expert_meter.h"
#include "engine/scheduler_recorder.h"
#include "executor/executor.h"
#include "messages/engine_core_messages.h"
#include "quire/engine_config.h"
#include "scheduler/scheduler.h"
#include "util/ring_queue.h"

namespace quire {

class EngineCore {
 public:
  // Divides the KV cache memory and allocates it. Throws InvalidArgument when one sequence does not fit, or
  // the configuration contradicts itself. `parts.wake` is called, from any thread, when a step may have
  // something to do that no request asked for. `clock` gives seconds, that of arrival_time.
  EngineCore(const EngineConfig& config, std::unique_ptr<Executor> executor, SchedulerParts parts = {},
             std::function<double()> clock = steady_seconds);

  static double steady_seconds();

  void add_request(EngineCoreRequest&& request);
  // Takes effect now: blocks are free on return. A step in flight may still compute the request; its tokens
  // are dropped. Unknown ids are ignored, and counted: they may just have finished.
  void abort_requests(std::span<const RequestId> request_ids);
  void set_pause_state(PauseState state);

  // Schedules and launches a step if there is room in flight, or collects the oldest one. Overwrites
  // `outputs`. Returns false when there was nothing to do. InternalError means the engine has ended.
  bool step_once(EngineCoreOutputs& outputs);

  bool has_unfinished_requests() const {
    return scheduler_->has_unfinished_requests() || has_steps_in_flight();
  }
  bool has_steps_in_flight() const { return !in_flight_.empty(); }
  // While true, step_once launches nothing: what is in flight comes back, and then nothing is.
  void hold_launches(bool hold) { holds_launches_ = hold; }
  // Something to do besides requests: blocks in a KV connector's hands, or memory that another engine wants.
  bool has_background_work() const {
    return scheduler_->num_held_requests() > 0 || scheduler_->memory_is_wanted();
  }
  // Returns false while any request holds blocks.
  bool reset_prefix_cache();
  // With no step in flight and no unfinished request; no request may come before wake_up. Forgets cached
  // prefixes. Throws InvalidArgument while a KV connector holds blocks.
  void sleep(int32_t level);
  void wake_up(bool weights, bool kv_cache) { executor_->wake_up(weights, kv_cache); }
  // With no step in flight. Requests are computed anew, with their tokens so far. Throws InvalidArgument,
  // with nothing changed, for weights that are not this model's and while a KV connector holds blocks.
  void update_weights(const WeightSource& source);
  bool has_weights() const { return executor_->has_weights(); }
  const ModelInfo& model_info() const { return executor_->model_info(); }
  const Scheduler& scheduler() const { return *scheduler_; }
  // With no step in flight: of all that was computed. Throws as Executor::expert_loads.
  std::vector<ExpertLoad> expert_loads() { return executor_->expert_loads(); }
  // The scheduler's, and what the workers told with their steps.
  SchedulerStats stats() const;
  // From any thread. Throws InvalidArgument when there is no recorder, or the file cannot be written.
  void dump_flight_recorder(const std::string& path) const;
  // After an exception: into flight_recorder_dir, if there is one. Does not throw.
  void dump_after_failure() const;

 private:
  void add_to_scheduler(EngineCoreRequest&& request);
  void abort_in_scheduler(RequestId id);
  void apply_beam_actions();
  void end_what_waits_too_long(double now, EngineCoreOutputs& outputs);
  bool launch_step(double now);
  // Tells the executor to sample the step launched last, if the tokens that its masks depend on are known.
  void sample_step();
  void collect_step(EngineCoreOutputs& outputs);

  std::function<double()> clock_;
  std::unique_ptr<Scheduler> scheduler_;
  struct LaunchedStep {
    // Their addresses are stable until the step is collected.
    std::unique_ptr<SchedulerOutput> scheduler_output;
    std::unique_ptr<GrammarOutput> grammar_output;  // null: no request of it has a grammar
    bool is_sampled = false;                        // as the executor was told
    double launch_time = 0.0;
  };
  RingQueue<LaunchedStep> in_flight_;                          // oldest first
  std::vector<std::pair<double, RequestId>> queue_deadlines_;  // a heap, the earliest first
  BeamGroups beam_groups_;
  BeamGroups::Actions beam_actions_;
  std::unique_ptr<SchedulerRecorder> recorder_;                           // null: none
  std::vector<std::unique_ptr<SchedulerOutput>> free_scheduler_outputs_;  // recycled
  std::vector<std::unique_ptr<GrammarOutput>> free_grammar_outputs_;
  ModelRunnerOutput result_;
  ExpertMeter expert_meter_{{}};
  std::array<uint64_t, kNumCudagraphModes> num_steps_by_mode_{};  // of workers that have graphs
  double last_collect_time_ = 0.0;
  bool holds_launches_ = false;
  std::string step_error_;        // of a failed step: those in flight behind it computed on what it left
  int32_t num_failed_steps_ = 0;  // since one succeeded
  std::unique_ptr<Executor> executor_;  // last: it goes first, and with it the threads that read the outputs
};

}  // namespace quire
