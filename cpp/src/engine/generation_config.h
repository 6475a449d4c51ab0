// Files that a model's generation is configured by.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "quire/engine_config.h"
#include "quire/generation_config.h"

namespace quire {

// Throws InvalidArgument when config.generation_config names a file that is not there, or
// override_generation_config holds what is not read.
void check_generation_config(const EngineConfig& config);

// The tokens that end a sequence: the eos_token_id of the generation_config.json that is named, else of the
// model's, else of its config.json. Throws InvalidArgument for ids outside the vocabulary.
std::vector<int32_t> read_eos_token_ids(const EngineConfig& config, int32_t vocab_size);

}  // namespace quire
