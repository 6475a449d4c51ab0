// Random numbers that depend on nothing but their key: a request continued elsewhere draws the same tokens.
#pragma once

#include <cstdint>

namespace quire::cuda {

// Philox4x32-10 (Salmon et al., 2011): four random words for (seed, position, group).
__device__ __forceinline__ uint4 philox(uint64_t seed, int64_t position, uint32_t group) {
  uint4 c = make_uint4(static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), group, 0);
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53U} * c.x, b = uint64_t{0xCD9E8D57U} * c.z;
    c = make_uint4(static_cast<uint32_t>(b >> 32) ^ c.y ^ k0, static_cast<uint32_t>(b),
                   static_cast<uint32_t>(a >> 32) ^ c.w ^ k1, static_cast<uint32_t>(a));
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return c;
}

// -log(-log(u)) for u uniform in (0, 1). The largest values decide a draw, so the uniform number is
// the distance of u from 1: next to zero a float is fine enough, next to one it is not.
__device__ __forceinline__ float gumbel(uint32_t bits) {
  const float v = fminf((static_cast<float>(bits) + 0.5F) * 0x1p-32F, 1.0F - 0x1p-24F);
  const float series = v * fmaf(v, fmaf(v, fmaf(v, fmaf(v, 0.2F, 0.25F), 1.0F / 3), 0.5F), 1.0F);
  const float exponential = v < 0.0625F ? series : -__logf(1.0F - v);  // -log(1 - v)
  return -__logf(exponential);
}

// The Gumbel number of one token.
__device__ __forceinline__ float gumbel_of(uint64_t seed, int64_t position, uint32_t token) {
  const uint4 words = philox(seed, position, token / 4);
  const uint32_t low = token % 2 == 0 ? words.x : words.y, high = token % 2 == 0 ? words.z : words.w;
  return gumbel(token % 4 < 2 ? low : high);
}

}  // namespace quire::cuda
