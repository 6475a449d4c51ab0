#include "quire/prometheus.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string_view>
#include <utility>

#include "observability/prometheus_text.h"
#include "quire/error.h"
#include "util/str.h"

namespace quire {
namespace {

constexpr std::string_view kPrefix = "quire:";
constexpr std::string_view kVLLMPrefix = "vllm:";
constexpr std::string_view kCacheConfigInfo = "cache_config_info";
const std::string_view kLoraRequestsInfo = std::string_view(LoraRequestsInfo::kName).substr(kPrefix.size());

// Cells of a family: a counter's or a gauge's series, or a histogram's buckets, what is above them, and the
// sum.
size_t num_cells(const MetricFamily& family) {
  if (family.kind == MetricKind::kHistogram) return family.buckets.size() + 2;
  return std::max<size_t>(family.label_values.size(), 1);
}

// Whether a name is one of metric_families(), or of what labels tell, with either prefix.
bool is_engines(std::string_view name) {
  if (name.starts_with(kPrefix)) {
    name.remove_prefix(kPrefix.size());
  } else if (name.starts_with(kVLLMPrefix)) {
    name.remove_prefix(kVLLMPrefix.size());
  } else {
    return false;
  }
  const auto& families = metric_families();
  return name == kCacheConfigInfo || name == kLoraRequestsInfo ||
         std::any_of(families.begin(), families.end(), [&](const auto& family) {
           return name == std::string_view(family.name).substr(kPrefix.size());
         });
}

}  // namespace

struct PrometheusMetrics::Impl {
  // One series, whose labels are what it tells.
  struct InfoSeries {
    void append(std::string& text, const std::string& name, std::string_view help) const {
      if (labels.empty()) return;  // nothing was told
      append_header(text, name, help, MetricKind::kGauge);
      append_sample(text, name, labels, value);
    }
    std::string labels;
    double value = 1.0;
  };

  explicit Impl(const PrometheusOptions& given) : options(given) {
    const std::vector<std::string> names = {"model_name", "engine"};
    const std::vector<std::string> values = {options.model_name, options.engine};
    base_labels = label_text(names, values);
    size_t num_all_cells = 0;
    for (const MetricFamily& family : metric_families()) {
      first_cell.push_back(num_all_cells);
      num_all_cells += num_cells(family);
      std::vector<std::string>& labels = series_labels.emplace_back();
      for (const std::string& value : family.label_values) {
        const std::string name = family.label_name;
        labels.push_back(base_labels + ',' + label_text({&name, 1}, {&value, 1}));
      }
      if (labels.empty()) labels.push_back(base_labels);
    }
    cells = std::vector<std::atomic<double>>(num_all_cells);
  }

  // One thread tells, so nothing is lost between the two halves; several may read.
  void grow(size_t cell, double amount) {
    cells[cell].store(cells[cell].load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }
  double at(size_t cell) const { return cells[cell].load(std::memory_order_relaxed); }
  size_t cell_of(Metric metric) const { return first_cell[static_cast<size_t>(metric)]; }

  void render_engine(std::string& text, std::string_view prefix) const {
    std::vector<double> counts;
    for (const MetricFamily& family : metric_families()) {
      const size_t first = cell_of(family.metric);
      const auto& labels = series_labels[static_cast<size_t>(family.metric)];
      const std::string name = std::string(prefix).append(family.name + kPrefix.size());
      append_header(text, name, family.help, family.kind);
      if (family.kind != MetricKind::kHistogram) {
        for (size_t i = 0; i < labels.size(); ++i) append_sample(text, name, labels[i], at(first + i));
        continue;
      }
      counts.clear();
      for (size_t i = 0; i <= family.buckets.size(); ++i) counts.push_back(at(first + i));
      append_histogram(text, name, labels[0], family.buckets, counts, at(first + counts.size()));
    }
  }

  const PrometheusOptions options;
  std::string base_labels;
  std::vector<size_t> first_cell;                       // by Metric
  std::vector<std::vector<std::string>> series_labels;  // by Metric, then label
  std::vector<std::atomic<double>> cells;
  std::atomic<bool> is_attached{false};

  mutable std::mutex mutex;  // guards what follows
  InfoSeries cache_config, lora_requests;
  std::vector<std::shared_ptr<PrometheusFamily>> families;
};

PrometheusMetrics::PrometheusMetrics(const PrometheusOptions& options) : impl_(new Impl(options)) {
  if (!options.quire_names && !options.alias_vllm)
    throw InvalidArgument("quire_names and alias_vllm are both false: one must be true, to show anything");
}
PrometheusMetrics::~PrometheusMetrics() = default;

std::string PrometheusMetrics::render() const {
  Impl::InfoSeries cache_config, lora_requests;
  std::vector<std::shared_ptr<PrometheusFamily>> families;
  {
    const std::lock_guard lock(impl_->mutex);
    cache_config = impl_->cache_config;
    lora_requests = impl_->lora_requests;
    families = impl_->families;
  }
  std::string text;
  text.reserve(32768);
  for (const std::string_view prefix : {kPrefix, kVLLMPrefix}) {
    if (!(prefix == kPrefix ? impl_->options.quire_names : impl_->options.alias_vllm)) continue;
    impl_->render_engine(text, prefix);
    cache_config.append(text, std::string(prefix).append(kCacheConfigInfo), "How the KV cache was made");
    lora_requests.append(text, std::string(prefix).append(kLoraRequestsInfo), LoraRequestsInfo::kHelp);
  }
  for (const auto& family : families) family->render(text);
  return text;
}

std::shared_ptr<PrometheusFamily> PrometheusMetrics::add_family(PrometheusFamilyOptions options) {
  const auto family = std::make_shared<PrometheusFamily>(std::move(options));
  const std::string& name = family->options().name;
  if (is_engines(name))
    throw InvalidArgument(str("the metric ", name, " is the engine's own: choose another name"));
  const std::lock_guard lock(impl_->mutex);
  for (const auto& other : impl_->families) {
    if (other->options().name == name)
      throw InvalidArgument(
          str("there is a metric ", name, " already: use that one, or choose another name"));
  }
  impl_->families.push_back(family);
  return family;
}

void PrometheusMetrics::attach() {
  if (impl_->is_attached.exchange(true)) {
    throw InvalidArgument(str("metric_sink (PrometheusMetrics of model_name '", impl_->options.model_name,
                              "', engine '", impl_->options.engine,
                              "') has an engine already, whose gauges those of another would overwrite: make "
                              "one for each engine"));
  }
}

void PrometheusMetrics::detach() noexcept {
  for (const MetricFamily& family : metric_families())
    if (family.kind == MetricKind::kGauge) set(family.metric, 0.0);
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->cache_config = {};
    impl_->lora_requests = {};
  }
  impl_->is_attached = false;
}

void PrometheusMetrics::set_cache_config(const CacheConfigInfo& info) {
  const auto boolean = [](bool value) -> std::string { return value ? "True" : "False"; };  // as vLLM's are
  std::string utilization;
  append_number(utilization, info.gpu_memory_utilization);
  const std::vector<std::string> names = {"block_size",     "cache_dtype",
                                          "num_gpu_blocks", "enable_prefix_caching",
                                          "is_shared",      "gpu_memory_utilization"};
  const std::vector<std::string> values = {
      std::to_string(info.block_size),     info.cache_dtype,        std::to_string(info.num_gpu_blocks),
      boolean(info.enable_prefix_caching), boolean(info.is_shared), utilization};
  const std::lock_guard lock(impl_->mutex);
  impl_->cache_config.labels = impl_->base_labels + ',' + label_text(names, values);
}

void PrometheusMetrics::set_lora_requests(const LoraRequestsInfo& info) {
  std::vector<std::string> names, values;
  for (auto& [name, value] : info.labels()) {
    names.push_back(name);
    values.push_back(value);
  }
  const std::lock_guard lock(impl_->mutex);
  impl_->lora_requests = {impl_->base_labels + ',' + label_text(names, values),
                          LoraRequestsInfo::time_of_day()};
}

void PrometheusMetrics::add(Metric metric, size_t label, double amount) {
  impl_->grow(impl_->cell_of(metric) + label, amount);
}

void PrometheusMetrics::set(Metric metric, double value) {
  impl_->cells[impl_->cell_of(metric)].store(value, std::memory_order_relaxed);
}

void PrometheusMetrics::observe(Metric metric, double value, uint64_t count) {
  const std::vector<double>& buckets = metric_families()[static_cast<size_t>(metric)].buckets;
  const auto bucket = std::lower_bound(buckets.begin(), buckets.end(), value);
  const size_t first = impl_->cell_of(metric);
  impl_->grow(first + static_cast<size_t>(bucket - buckets.begin()), static_cast<double>(count));
  impl_->grow(first + buckets.size() + 1, value * static_cast<double>(count));
}

}  // namespace quire
