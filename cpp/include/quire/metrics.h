// What an engine measures while it serves, and the door through which it tells.
//
// The families carry vLLM v1's names and meanings, with `quire:` for `vllm:`, so that a dashboard made for
// one needs its prefix changed. Every exporter (Triton's metrics port, an HTTP server's /metrics) makes its
// metrics from metric_families() and fills them as a MetricSink; none has a list of its own.
//
// Where vLLM counts requests, it counts what its engine core does: a request with n completions is n of them.
// So does Quire, but for the two families that are of a whole request there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
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
  kRequestInferenceTime,       // from the first step to the last token
  kRequestTimePerOutputToken,  // kRequestDecodeTime over one token less than there are; of those with two
  // Histograms of tokens, of every completion, observed at its end.
  kRequestPromptTokens,
  kRequestGenerationTokens,
  kRequestPrefillKVComputedTokens,  // of the prompt, those that were not cached; observed with the first
                                    // token
  kRequestParamsMaxTokens,          // the max_tokens that was asked for
  // Histograms of whole requests, observed when the last completion ends.
  kRequestParamsN,                 // the n that was asked for
  kRequestMaxNumGenerationTokens,  // tokens of the longest completion
  // Histogram: tokens of a step, of prompts and generated.
  kIterationTokens,
  // Gauges: after the last step.
  kNumRequestsRunning,
  kNumRequestsWaiting,    // preempted ones included, and those whose adapter is being read
  kKVCacheUsage,          // [0, 1]: part of the blocks that this engine's requests hold
  kNumKVCacheBlocks,      // all there are; of a shared arena, as many as it could hold
  kNumKVCacheBlocksUsed,  // that this engine's requests hold; what is only cached is free
  kExpertLoadImbalance,   // EngineStats::expert_load_imbalance
  // Counters.
  kPrefixCacheQueries,       // prompt tokens looked up
  kPrefixCacheHits,          // prompt tokens found
  kExternalPrefixCacheHits,  // prompt tokens that a KV connector had besides
  kNumPreemptions,
  kPromptTokens,              // cached ones included; counted with the first token
  kPromptTokensCached,        // of those, the ones whose keys and values were already there
  kGenerationTokens,          // that were delivered: what follows a stop string is dropped, and not counted
  kSpecDecodeNumDraftTokens,  // draft tokens verified
  kSpecDecodeNumAcceptedTokens,  // draft tokens accepted
  kExpertTokens,                 // EngineStats::num_expert_tokens, counted once a second and at the end
  kRequestSuccess,               // completions that ended, by finished_reason
  kCudagraphSteps,               // steps of a device that has captured graphs, by mode
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

// How an engine's KV cache was made, which vLLM tells as the labels of cache_config_info.
struct CacheConfigInfo {
  int32_t block_size = 0;      // tokens a block
  int32_t num_gpu_blocks = 0;  // block 0 included, as in num_gpu_blocks_override
  std::string cache_dtype;     // the model's dtype
  bool enable_prefix_caching = false;
  bool is_shared = false;               // in a KVArena, whose blocks other engines may hold
  double gpu_memory_utilization = 0.0;  // what was asked for; means nothing on the CPU
};

// Which adapters unfinished requests have. One of which some requests run and some wait is in both lists,
// which are in the order of their bytes.
//
// Exporters show it as vLLM does: a gauge of one series with labels for it, whose value is when that was so,
// in seconds since 1970.
struct QUIRE_API LoraRequestsInfo {
  static constexpr const char* kName = "quire:lora_requests_info";
  static constexpr const char* kHelp =
      "Adapters of unfinished requests, as labels; the value is when they were told";

  int32_t max_lora = 0;  // EngineConfig::max_loras
  std::vector<std::string> waiting_lora_adapters;
  std::vector<std::string> running_lora_adapters;

  bool operator==(const LoraRequestsInfo&) const = default;
  // Names and values of the labels: names of adapters are joined by commas.
  std::vector<std::pair<std::string, std::string>> labels() const;
  // The value of a series that begins now.
  static double time_of_day();
};

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

  // An engine takes the sink, before it loads anything, and lets go of it at its end, when it tells no more.
  // A sink that serves one engine throws InvalidArgument to a second, whose constructor then does. On the
  // threads that make and end engines. By default nothing.
  virtual void attach();
  virtual void detach() noexcept;
  // Once, before the engine can be given a request; on the thread that makes it. By default nothing.
  virtual void set_cache_config(const CacheConfigInfo& info);
  // With enable_lora: on the thread that makes the engine, before it can be given a request, and then when it
  // has changed, as gauges are. By default nothing.
  virtual void set_lora_requests(const LoraRequestsInfo& info);

  // A counter grows by amount > 0. `label` is an index into label_values; 0 without a label.
  virtual void add(Metric metric, size_t label, double amount) = 0;
  // A gauge has changed. All are 0 at the start, and 0 again when the last request has ended: but for the
  // number of blocks, which is told with the first step and stays until the engine core's end.
  virtual void set(Metric metric, double value) = 0;
  // A histogram gets `value`, `count` times: requests that decode together wait equally long.
  virtual void observe(Metric metric, double value, uint64_t count) = 0;
};

}  // namespace quire
