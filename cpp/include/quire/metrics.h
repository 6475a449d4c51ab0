// What an engine measures while it serves, and the door through which it tells.
//
// The families carry vLLM v1's names and meanings, with `quire:` for `vllm:`, so that a dashboard made for
// one needs its prefix changed. Every exporter (Triton's metrics port, an HTTP server's /metrics) makes its
// metrics from metric_families() and fills them as a MetricSink; none has a list of its own.
//
// Where vLLM counts requests, it counts what its engine core does: a request with n completions is n of them.
// So does Quire, in every family here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "quire/export.h"

namespace quire {

enum class MetricKind : uint8_t { kCounter, kGauge, kHistogram };

enum class Metric : uint8_t {
  // Histograms of seconds.
  kTimeToFirstToken,    // from arrival; observed when the first token comes
  kInterTokenLatency,   // from one output of a request to its next one; a step may give it several tokens
  kTimePerOutputToken,  // kInterTokenLatency under the name that vLLM's Triton backend has for it
  kE2ERequestLatency,   // from arrival to the end; of every completion, however it ended
  kRequestQueueTime,    // from arrival to the first step it is in; observed at the end, as are the next three
  kRequestPrefillTime,  // from the first step to the first token; with preemptions in between
  kRequestDecodeTime,   // from the first token to the last
  kRequestInferenceTime,  // from the first step to the last token
  // Histograms of tokens, of every completion, observed at its end.
  kRequestPromptTokens,
  kRequestGenerationTokens,
  kRequestParamsN,          // the n that was asked for
  kRequestParamsMaxTokens,  // the max_tokens that was asked for
  // Histogram: tokens of a step, of prompts and generated.
  kIterationTokens,
  // Gauges: after the last step.
  kNumRequestsRunning,
  kNumRequestsWaiting,    // preempted ones included
  kKVCacheUsage,          // [0, 1]: part of the blocks that this engine's requests hold
  kNumKVCacheBlocks,      // all there are; of a shared arena, as many as it could hold
  kNumKVCacheBlocksUsed,  // that this engine's requests hold; what is only cached is free
  // Counters.
  kPrefixCacheQueries,  // prompt tokens looked up
  kPrefixCacheHits,     // prompt tokens found
  kNumPreemptions,
  kPromptTokens,      // cached ones included; counted with the first token
  kGenerationTokens,  // that were delivered: what follows a stop string is dropped, and not counted
  kRequestSuccess,    // completions that ended, by finished_reason
  kCudagraphSteps,    // steps of a device that has captured graphs, by mode
};
inline constexpr size_t kNumMetrics = static_cast<size_t>(Metric::kCudagraphSteps) + 1;

// Everything an exporter needs to make a metric.
struct QUIRE_API MetricFamily {
  Metric metric;
  const char* name;  // as Prometheus shows it: a counter's ends in _total
  const char* help;
  MetricKind kind;
  std::vector<double> buckets;            // of a histogram: upper bounds, ascending, without infinity
  const char* label_name;                 // "": none
  std::vector<std::string> label_values;  // one series for each; empty without a label
};

// One for each Metric, in its order.
QUIRE_API const std::vector<MetricFamily>& metric_families();

// Takes what an engine measures, through EngineConfig::metric_sink.
//
// Called on the engine's output thread (of LLMEngine: on the thread that calls step), never on two threads at
// once: once for each step, or several steps when their results waited, with what has changed, before the
// callbacks hear of it. It must return soon and must not call back into the engine. What it throws is caught
// and dropped; the first time, it is logged. The engine keeps its sink until it is destroyed. A sink serves
// one engine: the gauges of two would overwrite each other.
class QUIRE_API MetricSink {
 public:
  virtual ~MetricSink();

  // A counter grows by amount > 0. `label` is an index into label_values; 0 without a label.
  virtual void add(Metric metric, size_t label, double amount) = 0;
  // A gauge has changed. All are 0 at the start, and 0 again when the last request has ended: but for the
  // number of blocks, which is told with the first step and stays until the engine core's end.
  virtual void set(Metric metric, double value) = 0;
  // A histogram gets `value`, `count` times: requests that decode together wait equally long.
  virtual void observe(Metric metric, double value, uint64_t count) = 0;
};

}  // namespace quire
