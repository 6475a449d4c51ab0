// A MetricSink that remembers what it was told.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "quire/metrics.h"

namespace quire {

// Thread-safe: a test may look while the engine runs.
class FakeMetricSink : public MetricSink {
 public:
  void add(Metric metric, size_t label, double amount) override {
    EXPECT_EQ(kind(metric), MetricKind::kCounter);
    EXPECT_GT(amount, 0.0);
    const std::lock_guard lock(mutex_);
    counters_[{metric, label}] += amount;
  }
  void set(Metric metric, double value) override {
    EXPECT_EQ(kind(metric), MetricKind::kGauge);
    const std::lock_guard lock(mutex_);
    Gauge& gauge = gauges_[metric];
    EXPECT_NE(gauge.value, value) << "it has not changed";
    gauge = {value, std::max(gauge.max, value)};
  }
  void observe(Metric metric, double value, uint64_t count) override {
    EXPECT_EQ(kind(metric), MetricKind::kHistogram);
    EXPECT_GE(value, 0.0);
    EXPECT_GT(count, 0U);
    const std::lock_guard lock(mutex_);
    Histogram& histogram = histograms_[metric];
    histogram.sum += value * static_cast<double>(count);
    histogram.count += count;
    ++histogram.num_calls;
  }
  void set_lora_requests(const LoraRequestsInfo& info) override {
    const std::lock_guard lock(mutex_);
    EXPECT_NE(lora_requests_, info) << "it has not changed";
    lora_requests_ = info;
  }

  std::optional<LoraRequestsInfo> lora_requests() const {
    const std::lock_guard lock(mutex_);
    return lora_requests_;
  }
  double counter(Metric metric, size_t label = 0) const { return find(counters_, {metric, label}); }
  double finished(const std::string& reason) const {
    const auto& labels = metric_families()[static_cast<size_t>(Metric::kRequestSuccess)].label_values;
    const auto found = std::find(labels.begin(), labels.end(), reason);
    return counter(Metric::kRequestSuccess, static_cast<size_t>(found - labels.begin()));
  }
  double gauge(Metric metric) const { return find(gauges_, metric).value; }
  double largest(Metric metric) const { return find(gauges_, metric).max; }
  uint64_t count(Metric metric) const { return find(histograms_, metric).count; }
  uint64_t num_calls(Metric metric) const { return find(histograms_, metric).num_calls; }
  double sum(Metric metric) const { return find(histograms_, metric).sum; }

 private:
  struct Gauge {
    double value = 0.0, max = 0.0;
  };
  struct Histogram {
    double sum = 0.0;
    uint64_t count = 0, num_calls = 0;
  };
  static MetricKind kind(Metric metric) { return metric_families()[static_cast<size_t>(metric)].kind; }
  template <class Map>
  typename Map::mapped_type find(const Map& map, const typename Map::key_type& key) const {
    const std::lock_guard lock(mutex_);
    const auto found = map.find(key);
    return found == map.end() ? typename Map::mapped_type{} : found->second;
  }

  mutable std::mutex mutex_;
  std::map<std::pair<Metric, size_t>, double> counters_;
  std::map<Metric, Gauge> gauges_;
  std::map<Metric, Histogram> histograms_;
  std::optional<LoraRequestsInfo> lora_requests_;
};

}  // namespace quire
