// How a front end reaches an engine core: inline, on its own thread, or (another implementation of the same
// interface) in another process.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/engine_core.h"

namespace quire {

class EngineCoreClient {
 public:
  virtual ~EngineCoreClient() = default;

  // All before the same step, or none. Thread-safe, like all but get_outputs; the inline client waits for the
  // step that runs. Throws ResourceExhausted when the engine has ended.
  virtual void add_requests(std::vector<EngineCoreRequest>&& requests) = 0;
  // Wakes get_outputs, perhaps with nothing to give.
  virtual void abort_requests(std::vector<RequestId> request_ids) = 0;
  virtual bool reset_prefix_cache() = 0;
  // Before the next step is scheduled.
  virtual void set_pause_state(PauseState state) = 0;
  virtual SchedulerStats stats() = 0;
  // Runs `task` on the core between two steps, when none is in flight, and returns when it is done. Throws
  // what it throws, and ResourceExhausted when the engine has ended. Not to be called from a task.
  virtual void call(const std::function<void(EngineCore&)>& task) = 0;
  // How long ago whoever steps the core last came round, while it has not come round again; 0 while it waits
  // for work, runs a task or has ended. Never waits, whatever a step does.
  virtual double seconds_since_progress() const = 0;

  // The results of one step. Inline: runs it; returns false when there is nothing to do. Threaded: waits for
  // one; returns false when the client was closed. From one thread. `outputs` is overwritten; its buffers are
  // taken for steps to come, so a caller that hands the same one back causes no allocation.
  virtual bool get_outputs(EngineCoreOutputs& outputs) = 0;
  // The results of one more step if they wait already; else returns false. Inline: none ever do.
  virtual bool try_get_outputs(EngineCoreOutputs& outputs) = 0;

  // From any thread. Throws InvalidArgument when there is no recorder, or the file cannot be written.
  virtual void dump_flight_recorder(const std::string& path) = 0;

  // Wakes get_outputs for good, and waits for the step that runs. Requests still in the engine are dropped.
  virtual void close() = 0;

  virtual const ModelInfo& model_info() const = 0;
};

std::unique_ptr<EngineCoreClient> make_inline_client(std::unique_ptr<EngineCore> core);
std::unique_ptr<EngineCoreClient> make_threaded_client(std::unique_ptr<EngineCore> core);

// Makes an engine core that calls `wake` (SchedulerParts) when a step may have something to do that no
// message asked for. `wake` may be called from any thread as long as the core lives.
using EngineCoreFactory = std::function<std::unique_ptr<EngineCore>(std::function<void()> wake)>;
// With `reports_stats`, get_outputs also gives steps that had nothing for any request, when they changed what
// scheduler_stats says of requests and blocks.
std::unique_ptr<EngineCoreClient> make_threaded_client(const EngineCoreFactory& make_core,
                                                       bool reports_stats = false);

}  // namespace quire
