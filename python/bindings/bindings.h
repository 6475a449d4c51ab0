// The parts of the extension module. Bindings translate names, docs and lifetimes; logic lives below.
#pragma once

#include <nanobind/nanobind.h>

namespace quire::bindings {

void bind_sampling(nanobind::module_& m);
void bind_config(nanobind::module_& m);
void bind_outputs(nanobind::module_& m);
void bind_text(nanobind::module_& m);
void bind_engine(nanobind::module_& m);
void bind_recorder(nanobind::module_& m);
void bind_simulator(nanobind::module_& m);

}  // namespace quire::bindings
