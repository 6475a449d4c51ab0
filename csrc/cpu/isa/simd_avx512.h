// Vectors of sixteen lanes: AVX-512 F, BW, DQ and VL, with the bf16 instructions.
#pragma once

#include <immintrin.h>
#include <string.h>

#include "isa/kernels.h"

namespace quire::cpu {
namespace {

using bf16 = uint16_t;  // storage only: overloads on it convert

constexpr int kLanes = 16;
// Of 32 registers, 24 hold sums, two the right operand; the left one is broadcast from memory.
constexpr int kMaxRows = 12;
constexpr int kColumnVectors = 2;
constexpr int kThinVectors = 2;  // with a single row

struct F32 {
  __m512 v;
};

inline __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1U << n) - 1); }
inline __m512 widen(__m256i x) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}
inline __m256i narrow(__m512 x) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)); }

inline F32 set1(float x) { return {_mm512_set1_ps(x)}; }
inline F32 zero() { return {_mm512_setzero_ps()}; }
inline F32 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline F32 load(const bf16* p) { return {widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))}; }
inline void store(float* p, F32 x) { _mm512_storeu_ps(p, x.v); }
inline void store(bf16* p, F32 x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(x.v)); }
// The first n lanes; the others read as zero and are not written.
inline F32 load_part(const float* p, int n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
inline F32 load_part(const bf16* p, int n) { return {widen(_mm256_maskz_loadu_epi16(first_lanes(n), p))}; }
inline void store_part(float* p, F32 x, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), x.v); }
inline void store_part(bf16* p, F32 x, int n) { _mm256_mask_storeu_epi16(p, first_lanes(n), narrow(x.v)); }

inline F32 add(F32 a, F32 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F32 sub(F32 a, F32 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F32 mul(F32 a, F32 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F32 div(F32 a, F32 b) { return {_mm512_div_ps(a.v, b.v)}; }
// 1 / x within 2 ulp, for |x| from 1 to 2^127: an estimate and a Newton step, as a division takes longer.
inline F32 reciprocal(F32 x) {
  const __m512 estimate = _mm512_rcp14_ps(x.v);
  return {_mm512_mul_ps(estimate, _mm512_fnmadd_ps(x.v, estimate, _mm512_set1_ps(2.0F)))};
}
inline F32 fma(F32 a, F32 b, F32 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// c - a * b
inline F32 fnma(F32 a, F32 b, F32 c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
// A NaN in b, and only there, comes through.
inline F32 max(F32 a, F32 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F32 min(F32 a, F32 b) { return {_mm512_min_ps(a.v, b.v)}; }
// 0, 1, 2, ...
inline F32 iota() { return {_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)}; }
// Lanes [begin, end) of `inside`, the others of `outside`; begin and end may lie beyond the vector.
inline F32 select_range(int begin, int end, F32 inside, F32 outside) {
  const int low = begin < 0 ? 0 : begin > kLanes ? kLanes : begin;
  const int high = end < low ? low : end > kLanes ? kLanes : end;
  const auto mask = static_cast<__mmask16>(first_lanes(high) & ~first_lanes(low));
  return {_mm512_mask_blend_ps(mask, outside.v, inside.v)};
}
inline float reduce_add(F32 x) { return _mm512_reduce_add_ps(x.v); }
inline float reduce_max(F32 x) { return _mm512_reduce_max_ps(x.v); }
inline double reduce_add_double(F32 x) {
  const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(x.v));
  const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x.v, 1));
  return _mm512_reduce_add_pd(_mm512_add_pd(low, high));
}
inline F32 round_even(F32 x) {
  return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// x * 2^n for whole n in [-127, 128]; n = -127 gives 0.
inline F32 scale_by_power(F32 x, F32 n) {
  const __mmask16 normal = _mm512_cmp_ps_mask(n.v, _mm512_set1_ps(-127.0F), _CMP_GT_OQ);
  return {_mm512_maskz_scalef_ps(normal, x.v, n.v)};
}
inline uint32_t greater_mask(F32 a, F32 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ); }
// Lanes where either is NaN.
inline uint32_t nan_mask(F32 a, F32 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_UNORD_Q); }

// bf16 matmuls: the right operand comes in pairs along the depth, the left one stays bf16.
using Staged = bf16;
struct Pairs {
  __m512bh v;
};
struct StagedPair {
  __m512bh v;
};
inline Pairs load_pairs(const bf16* p) { return {reinterpret_cast<__m512bh>(_mm512_loadu_si512(p))}; }
inline StagedPair broadcast_pair(const Staged* p) {
  int32_t pair;
  memcpy(&pair, p, sizeof pair);
  return {reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair))};
}
inline F32 dot_pairs(F32 acc, const StagedPair& a, const Pairs& b) {
  return {_mm512_dpbf16_ps(acc.v, a.v, b.v)};
}
// Whole numbers from int8.
inline F32 load(const int8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
// Requires values that bf16 holds exactly.
inline Pairs make_pairs(F32 even, F32 odd) {
  const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(even.v), 16);
  return {reinterpret_cast<__m512bh>(_mm512_or_si512(low, _mm512_castps_si512(odd.v)))};
}
inline void store_pairs(bf16* p, const Pairs& x) { _mm512_storeu_si512(p, reinterpret_cast<__m512i>(x.v)); }
inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

}  // namespace
}  // namespace quire::cpu
