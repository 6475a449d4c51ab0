#pragma once

#include <vector>

#include "worker/input_batch.h"

namespace quire {

// Prompt and output of a request that is not in the batch.
inline std::vector<int32_t> tokens_of(const CachedRequestState& state) {
  std::vector<int32_t> tokens = *state.prompt_token_ids;
  tokens.insert(tokens.end(), state.output_token_ids.begin(), state.output_token_ids.end());
  return tokens;
}

}  // namespace quire
