#include "quire/simulator.h"

#include "simulator/fleet.h"
#include "simulator/options.h"
#include "simulator/report.h"

namespace quire {

std::string simulate(const std::string& options_json) {
  const SimulatorOptions options = parse_options(options_json);
  return make_report(options, simulate_fleet(options));
}

}  // namespace quire
