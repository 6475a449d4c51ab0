// Keeps each request's timings, and counts what a MetricSink is to hear.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "messages/engine_core_messages.h"
#include "quire/metrics.h"

namespace quire {

// On the client's side of the engine core. What is recorded under the front end's lock waits until the output
// thread reports it, without the lock, so that a slow sink holds up nobody who submits. In the steady state
// nothing is allocated; without a sink only the timings are kept.
class MetricsRecorder {
 public:
  explicit MetricsRecorder(std::shared_ptr<MetricSink> sink) : sink_(std::move(sink)) {}

  bool has_sink() const { return sink_ != nullptr; }

  // A completion got `num_tokens` tokens, perhaps none, in a step that ended at `now`: its timings advance.
  void record_output(RequestMetrics& metrics, const EngineCoreOutput& output, int32_t num_tokens,
                     int32_t num_prompt_tokens, double now);
  // A completion ended.
  void record_finish(const RequestMetrics& metrics, FinishReason reason, int32_t num_prompt_tokens,
                     const SamplingParams& params, double now);
  // The last completion of a request ended; the longest has so many tokens.
  void record_request_end(const SamplingParams& params, int32_t max_num_generation_tokens);
  // How the engine core stands after a step; nothing counts after its end.
  void record_stats(const SchedulerStats& stats);
  // How many wait besides, for adapters that are being read.
  void record_waiting_for_lora(int32_t num_reqs);
  // Which adapters unfinished requests have.
  void record_lora_requests(LoraRequestsInfo&& info);
  // The engine core has ended, and with it all that ran or waited.
  void record_end();

  // Takes what was recorded since the last call; report() then tells the sink, which may throw. One thread
  // calls both, the first with the front end's lock and the second without.
  void begin_report();
  void report();

 private:
  struct Observation {
    Metric metric;
    double value = 0.0;
    uint64_t count = 0;
  };
  struct Record {
    std::array<double, kNumMetrics> values{};  // of counters, what was added; of gauges, what they are
    std::array<double, 5> num_finished{};      // by FinishReason
    std::array<double, 3> num_graph_steps{};   // by the metric's label
    std::vector<Observation> observations;
    std::optional<LoraRequestsInfo> lora_requests;  // what has changed
  };

  double& value(Metric metric) { return recorded_.values[static_cast<size_t>(metric)]; }
  void observe(Metric metric, double value);
  template <class Call>
  void tell(const Call& call);

  const std::shared_ptr<MetricSink> sink_;
  Record recorded_;       // since the last report; guarded by the front end's lock, like the next three
  SchedulerStats stats_;  // as last recorded
  int32_t num_waiting_for_lora_ = 0;
  bool has_ended_ = false;
  Record reported_;                           // the reporting thread's, like what follows
  std::array<double, kNumMetrics> gauges_{};  // as the sink knows them
  bool has_thrown_ = false;
};

// An engine's hold of its sink, for as long as it may tell it anything. Null: none.
class MetricSinkHold {
 public:
  // Throws what attach() does.
  explicit MetricSinkHold(std::shared_ptr<MetricSink> sink) : sink_(std::move(sink)) {
    if (sink_) sink_->attach();
  }
  ~MetricSinkHold() {
    if (sink_) sink_->detach();
  }
  MetricSinkHold(const MetricSinkHold&) = delete;
  MetricSinkHold& operator=(const MetricSinkHold&) = delete;

 private:
  const std::shared_ptr<MetricSink> sink_;
};

}  // namespace quire
