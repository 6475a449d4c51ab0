// Tells the flight recorder what the scheduler is told, and what it decides.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "observability/flight_recorder.h"
#include "observability/signal_dump.h"
#include "quire/engine_config.h"
#include "scheduler/recording_header.h"
#include "scheduler/scheduler.h"

namespace quire {

// Called on the engine core's thread, except dump(). In a steady step it allocates nothing.
class SchedulerRecorder {
 public:
  using InFlightPlan = std::function<const SchedulerOutput&(size_t)>;

  // `in_flight_plan` gives the i-th oldest plan whose results are to come.
  SchedulerRecorder(const EngineConfig& config, const RecordingHeader& header, Scheduler& scheduler,
                    InFlightPlan in_flight_plan);

  // Before a step is planned, after advance(): begins a segment of the ring when it is time.
  void begin_step(double now);
  void added(RequestId id);
  void aborted(RequestId id, RequestStatus status);
  void paused(PauseState state);
  void reset_prefix_cache();
  void planned(double now, const SchedulerOutput& plan, bool launched);
  void collected(double now, const SchedulerOutput& plan, const ModelRunnerOutput& result,
                 const EngineCoreOutputs& outputs, size_t first_output);

  // From any thread.
  void dump(const std::string& path) const { recorder_.dump(path); }
  // Into flight_recorder_dir, if there is one; what goes wrong is only logged.
  void dump_after(const std::string& why) const;

 private:
  Scheduler& scheduler_;
  InFlightPlan in_flight_plan_;
  std::string directory_;
  FlightRecorder recorder_;
  RecordedPlan plan_;  // recycled, like the next
  RecordedResult result_;
  uint64_t num_failed_allocations_ = 0;
  std::unique_ptr<SignalDump> signal_dump_;
};

}  // namespace quire
