// simulate()'s report; quire/simulator.h documents it.
#pragma once

#include <string>

#include "simulator/metrics.h"
#include "simulator/options.h"

namespace quire {

std::string make_report(const SimulatorOptions& options, const Metrics& metrics);

}  // namespace quire
