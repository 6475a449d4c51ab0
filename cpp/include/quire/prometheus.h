// What an engine measures, and what a server measures beside it, as the text that Prometheus scrapes.
//
// PrometheusMetrics is a MetricSink that keeps every family of metric_families(); render() writes them in
// Prometheus's text exposition format 0.0.4. A server that has families of its own (requests by route and
// status, streams in flight) adds them to the same object, and they are in the same text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "quire/export.h"
#include "quire/metrics.h"

namespace quire {

// A family that is not the engine's.
struct PrometheusFamilyOptions {
  std::string name;  // [a-zA-Z_:][a-zA-Z0-9_:]*, as it is shown: a counter's ends in _total
  std::string help;
  MetricKind kind = MetricKind::kCounter;
  std::vector<std::string> label_names;  // [a-zA-Z_][a-zA-Z0-9_]*
  std::vector<double> buckets;           // of a histogram: finite upper bounds, ascending, at least one
  // Series that are kept, at least 1. What has other labels when there are so many counts for one more series
  // whose labels all are "other": clients must not be able to make memory grow.
  size_t max_series = 1000;
};

// Made by PrometheusMetrics::add_family. Thread-safe. `labels` are the values of label_names, in that order;
// a series begins with its first value. Bytes in them that are not UTF-8 are written \xff. Everything throws
// InvalidArgument, naming the family, for another number of labels, a call that is not the kind's, and a
// value that is no number.
class QUIRE_API PrometheusFamily {
 public:
  explicit PrometheusFamily(PrometheusFamilyOptions options);
  ~PrometheusFamily();
  PrometheusFamily(const PrometheusFamily&) = delete;
  PrometheusFamily& operator=(const PrometheusFamily&) = delete;

  const PrometheusFamilyOptions& options() const;
  // A counter grows by amount >= 0; a gauge changes by it.
  void add(const std::vector<std::string>& labels, double amount = 1.0);
  // Of a gauge.
  void set(const std::vector<std::string>& labels, double value);
  // Of a histogram.
  void observe(const std::vector<std::string>& labels, double value);
  // Appends the family, its help and its type.
  void render(std::string& text) const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

struct PrometheusOptions {
  std::string model_name;    // the label model_name of all that is the engine's: the name it is served under
  std::string engine = "0";  // the label engine: which of several engines of a server
  // Under which names a family of metric_families() is shown; at least one. vLLM's are the same with "vllm:"
  // for "quire:", for dashboards that were made for it; families that vLLM does not have are shown so too.
  bool quire_names = true;
  bool alias_vllm = false;
};

// The metrics of one engine at a time (EngineConfig::metric_sink), and of the server around it.
//
// What the engine tells is kept without locks and without allocating (but for the names of adapters), on one
// thread at a time; render() may be called on any thread and holds up nobody: of what is told meanwhile it
// may show a part, so a histogram's sum may lack what its last bucket counts, or the other way round, until
// it is rendered again. Counters stay
// when an engine ends, and the next one goes on with them; gauges are 0 then.
class QUIRE_API PrometheusMetrics final : public MetricSink {
 public:
  static constexpr const char* kContentType = "text/plain; version=0.0.4; charset=utf-8";

  // Throws InvalidArgument where both names are off.
  explicit PrometheusMetrics(const PrometheusOptions& options);
  ~PrometheusMetrics() override;
  PrometheusMetrics(const PrometheusMetrics&) = delete;
  PrometheusMetrics& operator=(const PrometheusMetrics&) = delete;

  // All families, the engine's first. Thread-safe.
  std::string render() const;
  // A family of the server's own, shown from now on. Throws InvalidArgument for a name that is taken or
  // cannot be one, and for labels, buckets or limits that cannot be. Thread-safe.
  std::shared_ptr<PrometheusFamily> add_family(PrometheusFamilyOptions options);

  // What the engine calls.
  void attach() override;
  void detach() noexcept override;
  void set_cache_config(const CacheConfigInfo& info) override;
  void set_lora_requests(const LoraRequestsInfo& info) override;
  void add(Metric metric, size_t label, double amount) override;
  void set(Metric metric, double value) override;
  void observe(Metric metric, double value, uint64_t count) override;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace quire
