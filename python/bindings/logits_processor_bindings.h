// Logits processors that are Python classes.
#pragma once

#include <nanobind/nanobind.h>

#include "quire/engine_config.h"

namespace quire::bindings {

// Names, paths and classes, as EngineConfig has them. What is none of them raises.
bool set_logits_processors(EngineConfig& config, nanobind::handle value);

// Whether this thread is in a processor that is one of this configuration's own.
bool is_in_logits_processor(const EngineConfig& config);
// Or in any.
bool is_in_logits_processor();

}  // namespace quire::bindings
