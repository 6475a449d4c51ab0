#include "metric_reporter.h"

#include <utility>

#include "process_exit.h"

namespace quire::triton {
namespace {

TRITONSERVER_MetricKind server_kind(MetricKind kind) {
  switch (kind) {
    case MetricKind::kCounter: return TRITONSERVER_METRIC_KIND_COUNTER;
    case MetricKind::kGauge: return TRITONSERVER_METRIC_KIND_GAUGE;
    case MetricKind::kHistogram: break;
  }
  return TRITONSERVER_METRIC_KIND_HISTOGRAM;
}

struct DeleteParameter {
  void operator()(TRITONSERVER_Parameter* label) const { server_api().TRITONSERVER_ParameterDelete(label); }
};
using Label = std::unique_ptr<TRITONSERVER_Parameter, DeleteParameter>;

Label make_label(const char* name, const std::string& value) {
  return Label(server_api().TRITONSERVER_ParameterNew(name, TRITONSERVER_PARAMETER_STRING, value.c_str()));
}

struct DeleteArgs {
  void operator()(TRITONSERVER_MetricArgs* args) const {
    log_failure(server_api().TRITONSERVER_MetricArgsDelete(args), "deleting a metric's arguments");
  }
};

// What every metric of an engine has.
std::vector<Label> base_labels(const std::string& model, const std::string& version,
                               const std::string& engine) {
  std::vector<Label> labels;
  labels.push_back(make_label("model", model));
  labels.push_back(make_label("version", version));
  labels.push_back(make_label("model_name", model));  // vLLM's, which its dashboards filter by
  labels.push_back(make_label("engine", engine));
  return labels;
}

TRITONSERVER_Metric* make_metric(TRITONSERVER_MetricFamily* family, const std::vector<Label>& labels,
                                 const std::vector<double>& buckets) {
  std::unique_ptr<TRITONSERVER_MetricArgs, DeleteArgs> args;
  if (!buckets.empty()) {
    TRITONSERVER_MetricArgs* made = nullptr;
    check(server_api().TRITONSERVER_MetricArgsNew(&made));
    args.reset(made);
    check(server_api().TRITONSERVER_MetricArgsSetHistogram(made, buckets.data(), buckets.size()));
  }
  std::vector<const TRITONSERVER_Parameter*> pointers;
  for (const Label& label : labels) pointers.push_back(label.get());
  TRITONSERVER_Metric* metric = nullptr;
  check(server_api().TRITONSERVER_MetricNewWithArgs(&metric, family, pointers.data(), pointers.size(),
                                                    args.get()));
  return metric;
}

}  // namespace

MetricFamilies::MetricFamilies() {
  const auto add = [this](MetricKind kind, const char* name, const char* help) {
    TRITONSERVER_MetricFamily* made = nullptr;
    TRITONSERVER_Error* error =
        server_api().TRITONSERVER_MetricFamilyNew(&made, server_kind(kind), name, help);
    if (error) {
      for (TRITONSERVER_MetricFamily* earlier : families_) {
        log_failure(server_api().TRITONSERVER_MetricFamilyDelete(earlier), "deleting a metric family");
      }
      check(error);
    }
    families_.push_back(made);
  };
  for (const MetricFamily& family : metric_families()) add(family.kind, family.name, family.help);
  add(MetricKind::kGauge, LoraRequestsInfo::kName, LoraRequestsInfo::kHelp);
}

MetricFamilies::~MetricFamilies() {
  for (TRITONSERVER_MetricFamily* family : families_) {
    log_failure(server_api().TRITONSERVER_MetricFamilyDelete(family), "deleting a metric family");
  }
}

MetricReporter::MetricReporter(std::shared_ptr<const MetricFamilies> families, const std::string& model,
                               uint64_t version, size_t engine,
                               std::shared_ptr<const std::atomic<bool>> is_current)
    : model_(model),
      version_(std::to_string(version)),
      engine_(std::to_string(engine)),
      families_(std::move(families)),
      is_current_(std::move(is_current)),
      metrics_(metric_families().size()) {
  try {
    for (const MetricFamily& family : metric_families()) {
      const size_t num_series = family.label_values.empty() ? 1 : family.label_values.size();
      for (size_t i = 0; i < num_series; ++i) {
        std::vector<Label> labels = base_labels(model_, version_, engine_);
        if (!family.label_values.empty())
          labels.push_back(make_label(family.label_name, family.label_values[i]));
        metrics_[static_cast<size_t>(family.metric)].push_back(
            make_metric((*families_)[family.metric], labels, family.buckets));
      }
    }
  } catch (...) {
    delete_metrics();
    throw;
  }
}

MetricReporter::~MetricReporter() { delete_metrics(); }

void MetricReporter::delete_metrics() {
  for (const auto& series : metrics_) {
    for (TRITONSERVER_Metric* metric : series) {
      log_failure(server_api().TRITONSERVER_MetricDelete(metric), "deleting a metric");
    }
  }
  if (lora_series_) log_failure(server_api().TRITONSERVER_MetricDelete(lora_series_), "deleting a metric");
}

void MetricReporter::add(Metric metric, size_t label, double amount) {
  const auto guard = enter_server();
  check(server_api().TRITONSERVER_MetricIncrement(metrics_[static_cast<size_t>(metric)].at(label), amount));
}

void MetricReporter::reset_gauges(int32_t num_kv_cache_blocks) {
  for (const MetricFamily& family : metric_families()) {
    if (family.kind != MetricKind::kGauge) continue;
    set(family.metric, family.metric == Metric::kNumKVCacheBlocks ? num_kv_cache_blocks : 0.0);
  }
  const auto guard = enter_server();
  const std::lock_guard lock(lora_mutex_);
  show_lora_requests();
}

void MetricReporter::set_lora_requests(const LoraRequestsInfo& info) {
  const auto guard = enter_server();
  const std::lock_guard lock(lora_mutex_);
  lora_requests_ = info;
  show_lora_requests();
}

// The adapters are labels, so that other adapters are another series. The former goes first: an engine that a
// reload replaced may have one with the same labels, and the server has one metric for both then.
void MetricReporter::show_lora_requests() {
  if (lora_series_) check(server_api().TRITONSERVER_MetricDelete(std::exchange(lora_series_, nullptr)));
  if (!*is_current_ || !lora_requests_) return;
  std::vector<Label> labels = base_labels(model_, version_, engine_);
  for (const auto& [name, value] : lora_requests_->labels())
    labels.push_back(make_label(name.c_str(), value));
  lora_series_ = make_metric(families_->lora_requests(), labels, {});
  check(server_api().TRITONSERVER_MetricSet(lora_series_, LoraRequestsInfo::time_of_day()));
}

void MetricReporter::set(Metric metric, double value) {
  if (!*is_current_) return;
  const auto guard = enter_server();
  check(server_api().TRITONSERVER_MetricSet(metrics_[static_cast<size_t>(metric)][0], value));
}

void MetricReporter::observe(Metric metric, double value, uint64_t count) {
  const auto guard = enter_server();
  for (uint64_t i = 0; i < count; ++i) {
    check(server_api().TRITONSERVER_MetricObserve(metrics_[static_cast<size_t>(metric)][0], value));
  }
}

}  // namespace quire::triton
