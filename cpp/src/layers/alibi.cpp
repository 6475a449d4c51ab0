#include "layers/alibi.h"

#include <bit>
#include <cmath>

namespace quire {

std::vector<float> alibi_slopes(int32_t num_heads, double max_bias) {
  const auto power = static_cast<int32_t>(std::bit_floor(static_cast<uint32_t>(num_heads)));
  std::vector<float> slopes;
  for (int32_t i = 1; i <= power; ++i) slopes.push_back(static_cast<float>(std::exp2(-max_bias * i / power)));
  for (int32_t i = 1; static_cast<int32_t>(slopes.size()) < num_heads; i += 2)
    slopes.push_back(static_cast<float>(std::exp2(-max_bias * i / (2 * power))));
  return slopes;
}

}  // namespace quire
