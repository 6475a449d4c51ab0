// simulate().
#include "quire/simulator.h"

#include <nanobind/stl/string.h>

#include "bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace quire::bindings {

void bind_simulator(nb::module_& m) {
  m.def("simulate", &simulate, "options_json"_a, ReleaseGil(),
        "Runs a simulation: options in, report out, both JSON. See quire/simulator.h, and quire.simulate.");
}

}  // namespace quire::bindings
