// Tells the flight recorder what the scheduler is told, and what it decides.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "observability/flight_recorder.h"
#include "observability/signal_dump.h"
#include "quire/engine_config.h"
#include "scheduler/recording_header.h"
#include "scheduler/scheduler.h"

namespace quire {

// Passes questions on to a KV connector, and keeps its answers.
class RecordedKVConnector final : public KVConnectorScheduler {
 public:
  explicit RecordedKVConnector(std::shared_ptr<KVConnectorScheduler> connector)
      : connector_(std::move(connector)) {}

  std::optional<KVConnectorMatch> get_num_new_matched_tokens(const KVConnectorRequest& request,
                                                             int32_t num_computed_tokens) override;
  void update_state_after_alloc(const KVConnectorRequest& request, KVConnectorBlocks blocks,
                                int32_t num_external_tokens) override;
  std::string build_connector_meta(uint64_t step_id,
                                   std::span<const KVConnectorScheduled> scheduled) override;
  bool request_finished(const KVConnectorRequest& request, KVConnectorBlocks blocks) override;

  // Since the last call; overwrites `out`.
  void take_answers(KVConnectorAnswers& out) {
    out.clear();
    out.swap(answers_);
  }

 private:
  std::shared_ptr<KVConnectorScheduler> connector_;
  KVConnectorAnswers answers_;
};

// Called on the engine core's thread, except dump(). In a steady step it allocates nothing.
class SchedulerRecorder {
 public:
  using InFlightOutput = std::function<const SchedulerOutput&(size_t)>;

  // `in_flight_output` gives what was scheduled in the i-th oldest step in flight. `connector`: the
  // scheduler's, or null.
  SchedulerRecorder(const EngineConfig& config, const RecordingHeader& header, Scheduler& scheduler,
                    InFlightOutput in_flight_output,
                    std::shared_ptr<RecordedKVConnector> connector = nullptr);

  // Before a step is scheduled, after advance(): begins a segment of the ring when it is time.
  void begin_step(double now);
  void added(RequestId id);
  void aborted(RequestId id, RequestStatus status);
  void grammar_ready(RequestId id);
  void paused(PauseState state);
  void reset_prefix_cache();
  void scheduled(double now, const SchedulerOutput& scheduler_output, bool launched);
  void collected(double now, const SchedulerOutput& scheduler_output, const ModelRunnerOutput& result,
                 const EngineCoreOutputs& outputs, size_t first_output);

  // From any thread.
  void dump(const std::string& path) const { recorder_.dump(path); }
  // Into flight_recorder_dir, if there is one; what goes wrong is only logged.
  void dump_after(const std::string& why) const;

 private:
  int32_t num_drafts_kept(const RequestResult& result) const;
  void take_answers(KVConnectorAnswers& out) {
    if (connector_) connector_->take_answers(out);
  }

  Scheduler& scheduler_;
  InFlightOutput in_flight_output_;
  std::shared_ptr<RecordedKVConnector> connector_;
  std::string directory_;
  FlightRecorder recorder_;
  RecordedSchedule schedule_;  // recycled, like the next
  RecordedResult result_;
  uint64_t num_failed_allocations_ = 0;
  std::unique_ptr<SignalDump> signal_dump_;
};

}  // namespace quire
