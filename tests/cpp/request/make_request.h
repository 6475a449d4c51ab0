// Requests as the scheduler's side is given them.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "messages/engine_core_messages.h"

namespace quire {

// One completion of `prompt`, of up to `max_tokens` tokens, which nothing else ends.
inline EngineCoreRequest make_request(RequestId id, std::vector<int32_t> prompt, int32_t max_tokens = 16) {
  EngineCoreRequest request;
  request.request_id = id;
  request.prompt_token_ids = std::move(prompt);
  request.sampling_params.edit().max_tokens = max_tokens;
  return request;
}

}  // namespace quire
