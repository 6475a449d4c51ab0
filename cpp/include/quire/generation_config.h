// What a model's authors advise to sample its answers with.
#pragma once

#include "quire/engine_config.h"
#include "quire/export.h"
#include "quire/sampling_params.h"

namespace quire {

// `base`, with what config.generation_config names and config.override_generation_config say of temperature,
// top_p, top_k, min_p, repetition_penalty and max_new_tokens (our max_tokens), the keys that vLLM reads; null
// says nothing. For requests that bring no parameters (LLM.generate without any), or as what a request's own
// are laid over (an OpenAI server's). A model without the file leaves `base` as it is.
//
// Reads the file anew. Throws InvalidArgument naming the file, the key, the value and what would do. Whether
// values are in their ranges is checked with the request. Thread-safe.
QUIRE_API SamplingParams default_sampling_params(const EngineConfig& config, SamplingParams base = {});

}  // namespace quire
