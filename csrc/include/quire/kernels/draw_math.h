// The arithmetic behind a draw, for every backend: from the same logits and seed each draws the same token,
// to the last bit of a tie. So there is no library's logarithm in it, and no multiplication that a compiler
// might fuse with an addition: what is to be fused says so.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define QUIRE_DRAW_MATH __host__ __device__ __forceinline__
#else
#define QUIRE_DRAW_MATH inline __attribute__((always_inline))
#endif

namespace quire::draw_math {

#ifdef __CUDA_ARCH__
QUIRE_DRAW_MATH float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
QUIRE_DRAW_MATH float float_of_bits(uint32_t bits) { return __uint_as_float(bits); }
QUIRE_DRAW_MATH uint32_t bits_of(float x) { return __float_as_uint(x); }
#else
QUIRE_DRAW_MATH float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
QUIRE_DRAW_MATH float float_of_bits(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}
QUIRE_DRAW_MATH uint32_t bits_of(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}
#endif

struct Words {
  uint32_t at[4];
};

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): four random words for a
// counter of four words and a key of two. They depend on nothing that came before, so that a request
// continued elsewhere draws the same tokens.
QUIRE_DRAW_MATH Words philox(Words counter, uint32_t key0, uint32_t key1) {
  uint32_t c0 = counter.at[0], c1 = counter.at[1], c2 = counter.at[2], c3 = counter.at[3];
#ifdef __CUDACC__
#pragma unroll
#else
#pragma GCC unroll 10
#endif
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53U} * c0, b = uint64_t{0xCD9E8D57U} * c2;
    c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ key0;
    c1 = static_cast<uint32_t>(b);
    c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ key1;
    c3 = static_cast<uint32_t>(a);
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  return {{c0, c1, c2, c3}};
}

// The words of four tokens: group g has those of ids 4 g to 4 g + 3.
QUIRE_DRAW_MATH Words words_of_group(uint64_t seed, int64_t position, uint32_t group) {
  const auto at = static_cast<uint64_t>(position);
  return philox({{static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32), group, 0}},
                static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
}

// The natural logarithm of a positive, normal number, within 2.5e-7 of itself. x = 2^n (1 + f), f in
// [sqrt(1/2) - 1, sqrt(2) - 1]; the polynomial is that of the smallest relative error there.
QUIRE_DRAW_MATH float log(float x) {
  const uint32_t bits = bits_of(x);
  const int32_t n = static_cast<int32_t>(bits - 0x3F3504F3U) >> 23;
  const float f = float_of_bits(bits - (static_cast<uint32_t>(n) << 23)) - 1.0F;
  float q = -0.100823774933815F;
  q = fma(q, f, 0.16180500388145447F);
  q = fma(q, f, -0.17243224382400513F);
  q = fma(q, f, 0.1990688294172287F);
  q = fma(q, f, -0.2497122883796692F);
  q = fma(q, f, 0.3333471417427063F);
  q = fma(q, f, -0.5000032186508179F);
  return fma(static_cast<float>(n), 0.693147182F, fma(f * f, q, f));
}

// -log(-log(u)) for u uniform in (0, 1). The largest values decide a draw, so the uniform number is
// the distance of u from 1: next to zero a float is fine enough, next to one it is not.
QUIRE_DRAW_MATH float gumbel(uint32_t bits) {
  const float uniform = (static_cast<float>(bits) + 0.5F) * 0x1p-32F;
  const float v = uniform < 1.0F - 0x1p-24F ? uniform : 1.0F - 0x1p-24F;
  const float series = v * fma(v, fma(v, fma(v, fma(v, 0.2F, 0.25F), 1.0F / 3), 0.5F), 1.0F);
  const float logarithm = -log(1.0F - v);
  return -log(v < 0.0625F ? series : logarithm);  // of -log(1 - v)
}

// No computed noise of a larger word exceeds this word's by more.
inline constexpr float kGumbelSlack = 0.01F;

// The noise of one token.
QUIRE_DRAW_MATH float gumbel_of(uint64_t seed, int64_t position, uint32_t token) {
  const Words words = words_of_group(seed, position, token / 4);
  const uint32_t low = token % 2 == 0 ? words.at[0] : words.at[1],
                 high = token % 2 == 0 ? words.at[2] : words.at[3];
  return gumbel(token % 4 < 2 ? low : high);
}

// How far a logit lies below the highest one, in the exponent's units. NaN: infinitely far.
QUIRE_DRAW_MATH float distance_of(float highest, float x, float scale) {
  return x == x ? (highest - x) * scale : float_of_bits(0x7F800000U);
}

// exp(-distance) for a distance of at least 0, within 2.5e-7 of itself; 0 beyond 87.
// -distance = n ln 2 + r, |r| <= ln 2 / 2.
QUIRE_DRAW_MATH float weight_of(float distance) {
  const float d = distance < 87.0F ? distance : 87.0F;
  const float shifted = fma(d, -1.44269504F, 12582912.0F);  // to the nearest integer, by rounding
  const float n = shifted - 12582912.0F;
  const float r = fma(n, 2.12194440e-4F, fma(n, -0.693359375F, -d));  // ln 2 in two parts
  float q = 0.008312520571053028F;
  q = fma(q, r, 0.04189015552401543F);
  q = fma(q, r, 0.16667114198207855F);
  q = fma(q, r, 0.499992311000824F);
  const float e = fma(r * r, q, r + 1.0F);
  const float weight = float_of_bits(bits_of(e) + (bits_of(shifted) << 23));
  return distance < 87.0F ? weight : 0.0F;
}

// A weight in [0, 1] as an integer, 2^43 times as much. Sums of up to 2^20 of them don't depend on their
// order.
QUIRE_DRAW_MATH uint64_t mass_of(float weight) {
  const uint32_t bits = bits_of(weight), down = 127U - (bits >> 23);
  return (uint64_t{(bits & 0x7FFFFFU) | 0x800000U} << 20) >> (down < 63U ? down : 63U);
}

// What a token scores in a draw: the highest score wins.
QUIRE_DRAW_MATH float score_of(float logit, float scale, float noise) { return fma(logit, scale, noise); }

// The score of a token whose logit is this far below the highest.
QUIRE_DRAW_MATH float score_below(float noise, float distance) {
#ifdef __CUDA_ARCH__
  return __fsub_rn(noise, distance);  // the product in `distance` stays rounded
#else
  return noise - distance;
#endif
}

// A scale, one over the temperature, so large that noise would be lost in the logits: the highest logit wins.
QUIRE_DRAW_MATH bool is_greedy(float temperature) {
  return !(temperature > 0.0F) || !(1.0F / temperature < 1e30F);
}

// What SamplingArgs::host_token_ids says of a row whose logits are all -infinity: every token is forbidden.
inline constexpr int32_t kNoTokenLeft = -2;

}  // namespace quire::draw_math
