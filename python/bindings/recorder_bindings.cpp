// What can be done with a flight recorder's file.
#include <nanobind/stl/string.h>

#include "bindings.h"
#include "quire/flight_recorder.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace quire::bindings {

void bind_recorder(nb::module_& m) {
  nb::class_<ReplayReport>(m, "ReplayReport", "How a replay went; see quire/flight_recorder.h.")
      .def_ro("model", &ReplayReport::model)
      .def_ro("seconds", &ReplayReport::seconds)
      .def_ro("num_requests", &ReplayReport::num_requests)
      .def_ro("num_steps", &ReplayReport::num_steps)
      .def_ro("num_identical", &ReplayReport::num_identical)
      .def_ro("num_tokens", &ReplayReport::num_tokens)
      .def_ro("num_preemptions", &ReplayReport::num_preemptions)
      .def_ro("divergence", &ReplayReport::divergence);
  m.def("replay_recording", &replay_recording, "path"_a, ReleaseGil(),
        "Schedules a recording anew and compares, step by step. Raises ValueError for a damaged file.");
  m.def("write_perfetto_trace", &write_perfetto_trace, "recording_path"_a, "trace_path"_a, ReleaseGil(),
        "Writes a recording as a timeline for Perfetto. Raises ValueError as replay_recording does.");
}

}  // namespace quire::bindings
