// Vectors of eight lanes: AVX2 and FMA.
#pragma once

#include <immintrin.h>
#include <string.h>

#include "isa/kernels.h"

namespace quire::cpu {
namespace {

using bf16 = uint16_t;  // storage only: overloads on it convert

constexpr int kLanes = 8;
// Of 16 registers, 8 hold sums, four the right operand (bf16: even and odd), two the left one.
constexpr int kMaxRows = 4;
constexpr int kColumnVectors = 2;
constexpr int kThinVectors = 4;  // with a single row

struct F32 {
  __m256 v;
};

inline __m256i first_lanes(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline __m256 widen(__m128i x) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}
// To nearest, ties to even; a NaN stays one.
inline __m128i narrow(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
  const __m256i value = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(nan)), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(value), _mm256_extracti128_si256(value, 1));
}

inline F32 set1(float x) { return {_mm256_set1_ps(x)}; }
inline F32 zero() { return {_mm256_setzero_ps()}; }
inline F32 load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline F32 load(const bf16* p) { return {widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))}; }
inline void store(float* p, F32 x) { _mm256_storeu_ps(p, x.v); }
inline void store(bf16* p, F32 x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow(x.v)); }
// The first n lanes; the others read as zero and are not written.
inline F32 load_part(const float* p, int n) { return {_mm256_maskload_ps(p, first_lanes(n))}; }
inline F32 load_part(const bf16* p, int n) {
  bf16 lanes[kLanes] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i];
  return load(lanes);
}
inline void store_part(float* p, F32 x, int n) { _mm256_maskstore_ps(p, first_lanes(n), x.v); }
inline void store_part(bf16* p, F32 x, int n) {
  bf16 lanes[kLanes];
  store(lanes, x);
  for (int i = 0; i < n; ++i) p[i] = lanes[i];
}

inline F32 add(F32 a, F32 b) { return {_mm256_add_ps(a.v, b.v)}; }
inline F32 sub(F32 a, F32 b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline F32 mul(F32 a, F32 b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline F32 div(F32 a, F32 b) { return {_mm256_div_ps(a.v, b.v)}; }
inline F32 reciprocal(F32 x) { return div(set1(1.0F), x); }
inline F32 fma(F32 a, F32 b, F32 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
// c - a * b
inline F32 fnma(F32 a, F32 b, F32 c) { return {_mm256_fnmadd_ps(a.v, b.v, c.v)}; }
// A NaN in b, and only there, comes through.
inline F32 max(F32 a, F32 b) { return {_mm256_max_ps(a.v, b.v)}; }
inline F32 min(F32 a, F32 b) { return {_mm256_min_ps(a.v, b.v)}; }
// 0, 1, 2, ...
inline F32 iota() { return {_mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7)}; }
// Lanes [begin, end) of `inside`, the others of `outside`; begin and end may lie beyond the vector.
inline F32 select_range(int begin, int end, F32 inside, F32 outside) {
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i below = _mm256_cmpgt_epi32(_mm256_set1_epi32(begin), index);
  const __m256i mask = _mm256_andnot_si256(below, _mm256_cmpgt_epi32(_mm256_set1_epi32(end), index));
  return {_mm256_blendv_ps(outside.v, inside.v, _mm256_castsi256_ps(mask))};
}
inline float reduce_add(F32 x) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x.v), _mm256_extractf128_ps(x.v, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float reduce_max(F32 x) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x.v), _mm256_extractf128_ps(x.v, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
inline double reduce_add_double(F32 x) {
  const __m256d sum = _mm256_add_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(x.v)),
                                    _mm256_cvtps_pd(_mm256_extractf128_ps(x.v, 1)));
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(sum), _mm256_extractf128_pd(sum, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}
inline F32 round_even(F32 x) { return {_mm256_round_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// x * 2^n for whole n in [-127, 128]; n = -127 gives 0, n = 128 infinity.
inline F32 scale_by_power(F32 x, F32 n) {
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127));
  return {_mm256_mul_ps(x.v, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)))};
}
inline uint32_t greater_mask(F32 a, F32 b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ)));
}
// Lanes where either is NaN.
inline uint32_t nan_mask(F32 a, F32 b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_UNORD_Q)));
}

// bf16 matmuls: the right operand comes in pairs along the depth and is widened by a shift and a mask,
// the left one is staged as fp32.
using Staged = float;
struct Pairs {
  F32 even, odd;
};
struct StagedPair {
  F32 even, odd;
};
inline Pairs load_pairs(const bf16* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {{_mm256_castsi256_ps(_mm256_slli_epi32(bits, 16))},
          {_mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(static_cast<int>(0xFFFF0000U))))}};
}
inline StagedPair broadcast_pair(const Staged* p) { return {set1(p[0]), set1(p[1])}; }
inline F32 dot_pairs(F32 acc, const StagedPair& a, const Pairs& b) {
  return fma(a.odd, b.odd, fma(a.even, b.even, acc));
}
// Whole numbers from int8.
inline F32 load(const int8_t* p) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
}
// Requires values that bf16 holds exactly.
inline Pairs make_pairs(F32 even, F32 odd) { return {even, odd}; }
inline void store_pairs(bf16* p, const Pairs& x) {
  const __m256i low = _mm256_srli_epi32(_mm256_castps_si256(x.even.v), 16);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_or_si256(low, _mm256_castps_si256(x.odd.v)));
}
inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

}  // namespace
}  // namespace quire::cpu
