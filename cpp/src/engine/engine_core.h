// START HERE. One step is: schedule, execute, update.
//
// Token ids in, token ids out; text stays with the front end. Not thread-safe: the inline driver calls it
// from the user's thread, the threaded one from a thread of its own (engine_core_client.h).
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "executor/executor.h"
#include "messages/engine_core_messages.h"
#include "quire/engine_config.h"
#include "scheduler/scheduler.h"

namespace quire {

class EngineCore {
 public:
  // Divides the KV cache memory and allocates it. Throws InvalidArgument when one sequence does not fit.
  EngineCore(const EngineConfig& config, std::unique_ptr<Executor> executor);

  void add_request(EngineCoreRequest&& request);
  // Takes effect now: blocks are free on return. A step in flight may still compute the request; its tokens
  // are dropped. Unknown ids are ignored: they may just have finished.
  void abort_requests(std::span<const RequestId> request_ids);

  // Plans and launches a step if there is room in flight, or collects the oldest one. Overwrites `outputs`.
  // Returns false when there was nothing to do. InternalError means the engine has ended.
  bool step_once(EngineCoreOutputs& outputs);

  bool has_unfinished_requests() const {
    return scheduler_->has_unfinished_requests() || !in_flight_.empty();
  }
  // Returns false while any request holds blocks.
  bool reset_prefix_cache() { return scheduler_->reset_prefix_cache(); }
  const ModelInfo& model_info() const { return executor_->model_info(); }
  const Scheduler& scheduler() const { return *scheduler_; }

 private:
  std::unique_ptr<Scheduler> scheduler_;
  std::deque<std::unique_ptr<SchedulerOutput>> in_flight_;    // launched, oldest first
  std::vector<std::unique_ptr<SchedulerOutput>> free_plans_;  // recycled
  ModelRunnerOutput result_;
  std::string step_error_;  // of a failed step: those in flight behind it computed on what it left
  std::unique_ptr<Executor> executor_;  // last: it goes first, and with it the threads that read the plans
};

}  // namespace quire
