#pragma once

#include <cstdint>
#include <vector>

#include "quire/export.h"

namespace quire QUIRE_MODEL_API {

// What a head adds to a score for each position that a key lies behind its query, negated (Press et al.,
// "Train Short, Test Long", 2022): a geometric sequence from 2^(-max_bias / n) to 2^-max_bias, for n heads, a
// power of two. For other numbers the next lower power's, then every other one of the next higher power's, as
// Bloom has them.
std::vector<float> alibi_slopes(int32_t num_heads, double max_bias = 8.0);

}  // namespace quire
