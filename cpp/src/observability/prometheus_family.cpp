#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <utility>

#include "observability/prometheus_text.h"
#include "quire/error.h"
#include "quire/prometheus.h"
#include "util/str.h"

namespace quire {
namespace {

bool is_name(const std::string& text, const char* others) {
  const auto is_letter = [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           std::string_view(others).find(c) != std::string_view::npos;
  };
  return !text.empty() && is_letter(text[0]) && std::all_of(text.begin(), text.end(), [&](char c) {
    return is_letter(c) || (c >= '0' && c <= '9');
  });
}

void check(const PrometheusFamilyOptions& options) {
  const std::string& name = options.name;
  if (!is_name(name, "_:"))
    throw InvalidArgument(str("a metric's name must match [a-zA-Z_:][a-zA-Z0-9_:]*, got '", name, "'"));
  const bool is_histogram = options.kind == MetricKind::kHistogram;
  if ((options.kind == MetricKind::kCounter) != name.ends_with("_total")) {
    throw InvalidArgument(str("a counter's name must end in _total, and no other's may, got '", name, "'"));
  }
  for (const std::string& label : options.label_names) {
    if (!is_name(label, "_") || label.starts_with("__") || (is_histogram && label == "le")) {
      throw InvalidArgument(str("a label of ", name,
                                " must match [a-zA-Z_][a-zA-Z0-9_]*, not begin with __, and of a histogram "
                                "not be le, got '",
                                label, "'"));
    }
    if (std::count(options.label_names.begin(), options.label_names.end(), label) > 1)
      throw InvalidArgument(str("the label '", label, "' of ", name, " is given twice"));
  }
  if (is_histogram == options.buckets.empty())
    throw InvalidArgument(str("buckets of ", name, ": a histogram needs some, and no other kind has any"));
  for (size_t i = 0; i < options.buckets.size(); ++i) {
    if (!std::isfinite(options.buckets[i]) || (i > 0 && options.buckets[i] <= options.buckets[i - 1])) {
      throw InvalidArgument(
          str("buckets of ", name, " must be finite and ascend, got ", options.buckets[i], " at ", i));
    }
  }
  if (options.max_series == 0)
    throw InvalidArgument(str("max_series of ", name, " must be at least 1, got 0"));
}

}  // namespace

struct PrometheusFamily::Impl {
  struct Series {
    std::string labels;          // as the text has them
    std::vector<double> counts;  // of a histogram
    double value = 0.0;          // of a histogram, the sum
  };

  Series& series(const std::vector<std::string>& labels) {
    auto found = by_labels.find(labels);
    if (found != by_labels.end()) return found->second;
    const bool is_full = by_labels.size() >= options.max_series;
    const std::vector<std::string> others(is_full ? labels.size() : 0, "other");
    const auto& kept = is_full ? others : labels;
    const auto [entry, inserted] = by_labels.try_emplace(kept);
    if (inserted) {
      entry->second.labels = label_text(options.label_names, kept);
      if (!options.buckets.empty()) entry->second.counts.resize(options.buckets.size() + 1);
    }
    return entry->second;
  }

  void check_call(const char* call, bool fits, size_t num_labels, double value) const {
    if (!fits) throw InvalidArgument(str(options.name, " is of another kind: it has no ", call));
    if (num_labels != options.label_names.size()) {
      std::string names;
      for (const std::string& label : options.label_names) names += (names.empty() ? "" : ", ") + label;
      throw InvalidArgument(str(options.name, " has ", options.label_names.size(), " labels (", names,
                                "), got ", num_labels, " values"));
    }
    if (std::isnan(value)) throw InvalidArgument(str(call, " of ", options.name, " needs a number, got NaN"));
  }

  const PrometheusFamilyOptions options;
  mutable std::mutex mutex;
  std::map<std::vector<std::string>, Series> by_labels;  // guarded by the mutex
};

PrometheusFamily::PrometheusFamily(PrometheusFamilyOptions options)
    : impl_((check(options), new Impl{std::move(options), {}, {}})) {
  // What has no labels is there from the start, at 0.
  if (impl_->options.label_names.empty()) impl_->series({});
}
PrometheusFamily::~PrometheusFamily() = default;

const PrometheusFamilyOptions& PrometheusFamily::options() const { return impl_->options; }

void PrometheusFamily::add(const std::vector<std::string>& labels, double amount) {
  const MetricKind kind = impl_->options.kind;
  impl_->check_call("add", kind != MetricKind::kHistogram, labels.size(), amount);
  if (kind == MetricKind::kCounter && !(amount >= 0))
    throw InvalidArgument(
        str("add of ", impl_->options.name, ", a counter, must be at least 0, got ", amount));
  const std::lock_guard lock(impl_->mutex);
  impl_->series(labels).value += amount;
}

void PrometheusFamily::set(const std::vector<std::string>& labels, double value) {
  impl_->check_call("set", impl_->options.kind == MetricKind::kGauge, labels.size(), value);
  const std::lock_guard lock(impl_->mutex);
  impl_->series(labels).value = value;
}

void PrometheusFamily::observe(const std::vector<std::string>& labels, double value) {
  const PrometheusFamilyOptions& options = impl_->options;
  impl_->check_call("observe", options.kind == MetricKind::kHistogram, labels.size(), value);
  const auto bucket = std::lower_bound(options.buckets.begin(), options.buckets.end(), value);
  const std::lock_guard lock(impl_->mutex);
  Impl::Series& series = impl_->series(labels);
  ++series.counts[static_cast<size_t>(bucket - options.buckets.begin())];
  series.value += value;
}

void PrometheusFamily::render(std::string& text) const {
  const PrometheusFamilyOptions& options = impl_->options;
  append_header(text, options.name, options.help, options.kind);
  const std::lock_guard lock(impl_->mutex);
  for (const auto& [labels, series] : impl_->by_labels) {
    if (options.kind == MetricKind::kHistogram) {
      append_histogram(text, options.name, series.labels, options.buckets, series.counts, series.value);
    } else {
      append_sample(text, options.name, series.labels, series.value);
    }
  }
}

}  // namespace quire
