// Engines behind a router, in virtual time.
#pragma once

#include "simulator/metrics.h"
#include "simulator/options.h"

namespace quire {

// Serves the whole trace. Engines affect each other only through the router: when it does not look at their
// load, each is simulated from beginning to end by itself (its memory stays in the processor's cache, and
// threads share the engines), else all events of the fleet are taken in order of time. Equal times: arrivals
// come first, then the engine with the lowest index.
Metrics simulate_fleet(const SimulatorOptions& options);

}  // namespace quire
