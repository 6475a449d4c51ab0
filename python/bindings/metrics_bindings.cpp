// PrometheusMetrics and the families that a server adds to it.
#include "metrics_bindings.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "quire/error.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace quire::bindings {
namespace {

struct FamilyHandle {
  std::shared_ptr<PrometheusFamily> family;
};
using Labels = std::vector<std::string>;

MetricKind kind_of(const std::string& name) {
  if (name == "counter") return MetricKind::kCounter;
  if (name == "gauge") return MetricKind::kGauge;
  if (name == "histogram") return MetricKind::kHistogram;
  throw InvalidArgument("kind must be 'counter', 'gauge' or 'histogram', got '" + name + "'");
}

FamilyHandle add_family(PrometheusHandle& self, const std::string& kind, std::string name, std::string help,
                        Labels labels, std::vector<double> buckets, size_t max_series) {
  return {self.metrics->add_family(
      {std::move(name), std::move(help), kind_of(kind), std::move(labels), std::move(buckets), max_series})};
}

nb::bytes render(const PrometheusHandle& self) {
  std::string text;
  {
    const ReleasedGil released;
    text = self.metrics->render();
  }
  return nb::bytes(text.data(), text.size());
}

}  // namespace

bool set_metric_sink(EngineConfig& config, nb::handle value) {
  const PrometheusHandle* handle = nullptr;
  if (!nb::try_cast<const PrometheusHandle*>(value, handle)) return false;
  config.metric_sink = handle ? handle->metrics : nullptr;
  return true;
}

nb::object get_metric_sink(const EngineConfig& config) {
  auto metrics = std::dynamic_pointer_cast<PrometheusMetrics>(config.metric_sink);
  return metrics ? nb::cast(PrometheusHandle{std::move(metrics)}) : nb::none();
}

void bind_metrics(nb::module_& m) {
  nb::class_<FamilyHandle>(
      m, "PrometheusFamily",
      "A family of a server's own, made by PrometheusMetrics.add_family. `labels` are the "
      "values of its labels, in their order. Thread-safe. ValueError, naming the family, "
      "for another number of labels and for a call that is not its kind's.")
      .def_prop_ro("name", [](const FamilyHandle& self) { return self.family->options().name; })
      .def(
          "add",
          [](const FamilyHandle& self, const Labels& labels, double amount) {
            self.family->add(labels, amount);
          },
          "labels"_a = Labels(), "amount"_a = 1.0, "A counter grows; a gauge changes, up or down.")
      .def(
          "set",
          [](const FamilyHandle& self, const Labels& labels, double value) {
            self.family->set(labels, value);
          },
          "labels"_a, "value"_a, "Of a gauge.")
      .def(
          "observe",
          [](const FamilyHandle& self, const Labels& labels, double value) {
            self.family->observe(labels, value);
          },
          "labels"_a, "value"_a, "Of a histogram.");

  nb::class_<PrometheusHandle>(
      m, "PrometheusMetrics",
      "What an engine measures, and what a server adds to it, for Prometheus to scrape: give it to one "
      "engine (``metric_sink=``), and serve ``render()`` with the type ``content_type``. Thread-safe. A "
      "second engine at the same time is refused with ValueError; counters go on with the engine after it.")
      .def(
          "__init__",
          [](PrometheusHandle* self, std::string model_name, std::string engine, bool alias_vllm,
             bool quire_names) {
            new (self) PrometheusHandle{std::make_shared<PrometheusMetrics>(
                PrometheusOptions{std::move(model_name), std::move(engine), quire_names, alias_vllm})};
          },
          nb::kw_only(), "model_name"_a, "engine"_a = "0", "alias_vllm"_a = false, "quire_names"_a = true,
          "``model_name`` and ``engine`` are labels of what the engine measures. ``alias_vllm`` shows it "
          "under vLLM's names too, for dashboards made for those; without ``quire_names`` under them alone.")
      .def_prop_ro(
          "content_type", [](const PrometheusHandle&) { return PrometheusMetrics::kContentType; },
          "What an HTTP answer with the text says that it is.")
      .def("render", render, "All families as text, in the exposition format 0.0.4.")
      .def("add_family", add_family, "kind"_a, "name"_a, "help"_a, nb::kw_only(), "labels"_a = Labels(),
           "buckets"_a = std::vector<double>(), "max_series"_a = 1000,
           "A family that the server fills: ``kind`` is 'counter' (whose name ends in _total), 'gauge' or "
           "'histogram' (with ``buckets``, ascending). ``labels`` are names. Of combinations of their values "
           "``max_series`` are kept, and one more, 'other', for the rest. Raises ValueError for what cannot "
           "be.");
}

}  // namespace quire::bindings
