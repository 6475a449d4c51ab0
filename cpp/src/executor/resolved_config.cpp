#include "executor/resolved_config.h"

#include <algorithm>

#include "layers/rotary_embedding.h"
#include "quire/error.h"
#include "util/str.h"

namespace quire {

int32_t resolve_max_model_len(const EngineConfig& config, const HfConfig& hf_config) {
  const int32_t supported = max_supported_positions(hf_config);
  if (config.max_model_len == 0) {
    return std::min(supported, hf_config.get_int("max_position_embeddings", 1, supported));
  }
  if (config.max_model_len > supported) {
    throw InvalidArgument(str("max_model_len ", config.max_model_len,
                              " is more than the model supports: ", supported,
                              " (max_position_embeddings and RoPE scaling in ", hf_config.path(), ")"));
  }
  return config.max_model_len;
}

Backend with_jump_forward(const EngineConfig& config, Backend backend) {
  backend.speculation.num_speculative_tokens =
      std::max(backend.speculation.num_speculative_tokens, config.num_jump_forward_tokens);
  return backend;
}

}  // namespace quire
