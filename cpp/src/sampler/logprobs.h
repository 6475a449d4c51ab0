// Log-probabilities of a position from a whole row of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "messages/engine_core_messages.h"

namespace quire {

// The most of the likeliest that are listed by a kernel. For more of them a row's log-probabilities come
// whole, and the host sorts them.
inline constexpr int32_t kMaxTopLogprobs = 100;

// Of a row of log-probabilities [V]: `id`'s, with its rank (1: the likeliest; ties by lowest id).
Logprob logprob_of(std::span<const float> logprobs, int32_t id);
// Appends the `num_top` likeliest in order. `scratch` keeps its memory.
void append_top_logprobs(std::span<const float> logprobs, int32_t num_top, PositionLogprobs& position,
                         std::vector<int32_t>& scratch);

}  // namespace quire
