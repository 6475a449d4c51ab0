// Changing places of two rows that are mostly empty.
#pragma once

#include <algorithm>
#include <cstdint>

namespace quire {

// Exchanges the first `count_a` elements of row a with the first `count_b` of row b: what both have is
// swapped, the rest of the longer one moves. Nothing beyond is read or written. The rows do not overlap and
// each has room for the longer one.
inline void swap_valid(int32_t* a, int32_t count_a, int32_t* b, int32_t count_b) {
  const int32_t both = std::min(count_a, count_b);
  std::swap_ranges(a, a + both, b);
  if (count_a > both) std::copy(a + both, a + count_a, b + both);
  if (count_b > both) std::copy(b + both, b + count_b, a + both);
}

}  // namespace quire
