// The engine's metrics on the server's metrics port.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "quire/metrics.h"
#include "server_api.h"

namespace quire::triton {

// One for the process: the server wants a family once, and a metric of it for each model. Throws ServerError
// when the server reports no metrics.
class MetricFamilies {
 public:
  MetricFamilies();
  ~MetricFamilies();
  MetricFamilies(const MetricFamilies&) = delete;
  MetricFamilies& operator=(const MetricFamilies&) = delete;

  TRITONSERVER_MetricFamily* operator[](Metric metric) const {
    return families_[static_cast<size_t>(metric)];
  }
  TRITONSERVER_MetricFamily* lora_requests() const { return families_.back(); }

 private:
  std::vector<TRITONSERVER_MetricFamily*> families_;  // by Metric, and that of LoraRequestsInfo
};

// The metrics of one engine of a model, labelled with the model's name (as the server does, and as vLLM does)
// and version, and the engine's number among the model's (as vLLM does). During a reload the old engine and
// the new one share them: both count, the current one alone sets gauges.
class MetricReporter final : public MetricSink {
 public:
  MetricReporter(std::shared_ptr<const MetricFamilies> families, const std::string& model, uint64_t version,
                 size_t engine, std::shared_ptr<const std::atomic<bool>> is_current);
  ~MetricReporter() override;

  // This engine is the current one now, and idle, with so many KV blocks.
  void reset_gauges(int32_t num_kv_cache_blocks);
  void set_lora_requests(const LoraRequestsInfo& info) override;
  void add(Metric metric, size_t label, double amount) override;
  void set(Metric metric, double value) override;
  void observe(Metric metric, double value, uint64_t count) override;

 private:
  void delete_metrics();
  // With lora_mutex_ held: the series of lora_requests_, if this engine is the current one.
  void show_lora_requests();

  const std::string model_;
  const std::string version_;
  const std::string engine_;
  std::shared_ptr<const MetricFamilies> families_;
  std::shared_ptr<const std::atomic<bool>> is_current_;
  std::vector<std::vector<TRITONSERVER_Metric*>> metrics_;  // by Metric, then label

  std::mutex lora_mutex_;
  std::optional<LoraRequestsInfo> lora_requests_;  // as last told; none without adapters
  TRITONSERVER_Metric* lora_series_ = nullptr;     // what is shown of it; null: nothing
};

}  // namespace quire::triton
