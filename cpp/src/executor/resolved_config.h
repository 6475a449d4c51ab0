// What a configuration comes to, with a model and a backend.
#pragma once

#include <cstdint>

#include "formats/hf_config.h"
#include "quire/engine_config.h"
#include "worker/backend.h"

namespace quire {

// config.max_model_len, or the model's own. Throws InvalidArgument for more than the model supports.
int32_t resolve_max_model_len(const EngineConfig& config, const HfConfig& hf_config);

// What grammars propose takes the place of a drafter's drafts, or comes without one.
Backend with_jump_forward(const EngineConfig& config, Backend backend);

}  // namespace quire
