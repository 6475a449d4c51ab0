// simulate()'s options, read and checked; quire/simulator.h documents them.
#pragma once

#include <cstdint>
#include <string>

#include "simulator/calibration.h"
#include "simulator/router.h"
#include "simulator/simulated_engine.h"
#include "simulator/trace.h"

namespace quire {

struct SimulatorOptions {
  SimulatedEngineConfig engine;
  int32_t num_engines = 1;
  RouterOptions router;
  Trace trace;
  Calibration calibration;
  uint64_t seed = 0;
  int32_t num_threads = 1;
};

// Reads the files that the options name. Throws InvalidArgument.
SimulatorOptions parse_options(const std::string& options_json);

}  // namespace quire
