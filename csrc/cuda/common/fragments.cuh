// What the lanes of a warp have of a tensor core's result, exchanged so that each can write 16 bytes of a
// row.
#pragma once

#include <cstdint>

namespace quire::cuda {

// Four words of a lane, of blocks of eight columns: lane t of four has columns 2 t and 2 t + 1 of each. After
// this it has all of block t.
__device__ __forceinline__ uint4 gather_block(uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3, int t) {
  constexpr uint32_t kAll = 0xFFFFFFFFU;
  const bool upper = (t & 2) != 0, odd = (t & 1) != 0;
  // With the lane two away: the lower two keep blocks 0 and 1, the upper two 2 and 3.
  const uint32_t from0 = __shfl_xor_sync(kAll, upper ? w0 : w2, 2);
  const uint32_t from1 = __shfl_xor_sync(kAll, upper ? w1 : w3, 2);
  const uint32_t a_low = upper ? from0 : w0, b_low = upper ? from1 : w1;    // columns of lanes 0 and 1
  const uint32_t a_high = upper ? w2 : from0, b_high = upper ? w3 : from1;  // of lanes 2 and 3
  // With the neighbour: even lanes keep the first of the two blocks.
  const uint32_t low = __shfl_xor_sync(kAll, odd ? a_low : b_low, 1);
  const uint32_t high = __shfl_xor_sync(kAll, odd ? a_high : b_high, 1);
  return odd ? uint4{low, b_low, high, b_high} : uint4{a_low, low, a_high, high};
}

}  // namespace quire::cuda
