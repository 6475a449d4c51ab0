// What Python holds of the metrics of an engine and a server.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "quire/engine_config.h"
#include "quire/prometheus.h"

namespace quire::bindings {

// The engine's sink lives as long as the engine, on its threads: what Python has is a reference beside it.
struct PrometheusHandle {
  std::shared_ptr<PrometheusMetrics> metrics;
};

// EngineConfig's argument metric_sink.
bool set_metric_sink(EngineConfig& config, nanobind::handle value);
nanobind::object get_metric_sink(const EngineConfig& config);

}  // namespace quire::bindings
