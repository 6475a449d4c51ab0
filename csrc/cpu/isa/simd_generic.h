// Vectors of four lanes in the compilers' own vector types, which map to SSE2, NEON or plain registers.
#pragma once

#include <string.h>

#include "isa/kernels.h"

namespace quire::cpu {
namespace {

using bf16 = uint16_t;  // storage only: overloads on it convert

constexpr int kLanes = 4;
// Of 16 registers, 8 hold sums, four the right operand (bf16: even and odd), two the left one.
constexpr int kMaxRows = 4;
constexpr int kColumnVectors = 2;
constexpr int kThinVectors = 4;  // with a single row

using Float4 = float __attribute__((vector_size(16)));
using Bits4 = uint32_t __attribute__((vector_size(16)));
using Int4 = int32_t __attribute__((vector_size(16)));
using Half4 = uint16_t __attribute__((vector_size(8)));

struct F32 {
  Float4 v;
};

inline F32 widen(Half4 x) { return {reinterpret_cast<Float4>(__builtin_convertvector(x, Bits4) << 16)}; }
// To nearest, ties to even; a NaN stays one.
inline Half4 narrow(F32 x) {
  const Bits4 bits = reinterpret_cast<Bits4>(x.v);
  const Bits4 rounded = bits + 0x7FFF + ((bits >> 16) & 1);
  return __builtin_convertvector((x.v == x.v ? rounded : bits | 0x400000) >> 16, Half4);
}

inline F32 set1(float x) { return {Float4{x, x, x, x}}; }
inline F32 zero() { return set1(0.0F); }
inline F32 load(const float* p) {
  F32 r;
  memcpy(&r, p, sizeof r);
  return r;
}
inline F32 load(const bf16* p) {
  Half4 half;
  memcpy(&half, p, sizeof half);
  return widen(half);
}
inline void store(float* p, F32 x) { memcpy(p, &x, sizeof x); }
inline void store(bf16* p, F32 x) {
  const Half4 half = narrow(x);
  memcpy(p, &half, sizeof half);
}
// The first n lanes; the others read as zero and are not written.
template <typename T>
F32 load_part(const T* p, int n) {
  T lanes[kLanes] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i];
  return load(lanes);
}
template <typename T>
void store_part(T* p, F32 x, int n) {
  T lanes[kLanes];
  store(lanes, x);
  for (int i = 0; i < n; ++i) p[i] = lanes[i];
}

inline F32 add(F32 a, F32 b) { return {a.v + b.v}; }
inline F32 sub(F32 a, F32 b) { return {a.v - b.v}; }
inline F32 mul(F32 a, F32 b) { return {a.v * b.v}; }
inline F32 div(F32 a, F32 b) { return {a.v / b.v}; }
inline F32 reciprocal(F32 x) { return div(set1(1.0F), x); }
// a * b + c; not fused here, fused in the other instruction sets.
inline F32 fma(F32 a, F32 b, F32 c) { return {a.v * b.v + c.v}; }
// c - a * b
inline F32 fnma(F32 a, F32 b, F32 c) { return {c.v - a.v * b.v}; }
// A NaN in b, and only there, comes through.
inline F32 max(F32 a, F32 b) { return {a.v > b.v ? a.v : b.v}; }
inline F32 min(F32 a, F32 b) { return {a.v < b.v ? a.v : b.v}; }
// 0, 1, 2, ...
inline F32 iota() { return {Float4{0, 1, 2, 3}}; }
// Lanes [begin, end) of `inside`, the others of `outside`; begin and end may lie beyond the vector.
inline F32 select_range(int begin, int end, F32 inside, F32 outside) {
  const Int4 index = {0, 1, 2, 3};
  return {(index >= begin) & (index < end) ? inside.v : outside.v};
}
inline float reduce_add(F32 x) { return (x.v[0] + x.v[2]) + (x.v[1] + x.v[3]); }
inline float reduce_max(F32 x) {
  const float a = x.v[0] > x.v[1] ? x.v[0] : x.v[1], b = x.v[2] > x.v[3] ? x.v[2] : x.v[3];
  return a > b ? a : b;
}
inline double reduce_add_double(F32 x) {
  double sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += static_cast<double>(x.v[i]);
  return sum;
}
// Adding 1.5 * 2^23 leaves no room for a fraction. Good for |x| < 2^22.
inline F32 round_even(F32 x) { return {(x.v + 12582912.0F) - 12582912.0F}; }
// x * 2^n for whole n in [-127, 128]; n = -127 gives 0, n = 128 infinity.
inline F32 scale_by_power(F32 x, F32 n) {
  const Int4 exponent = __builtin_convertvector(n.v, Int4) + 127;
  return {x.v * reinterpret_cast<Float4>(exponent << 23)};
}
inline uint32_t greater_mask(F32 a, F32 b) {
  const Int4 greater = a.v > b.v;
  uint32_t mask = 0;
  for (int i = 0; i < kLanes; ++i) mask |= static_cast<uint32_t>(greater[i] & 1) << i;
  return mask;
}
// Lanes where either is NaN.
inline uint32_t nan_mask(F32 a, F32 b) {
  const Int4 nan = (a.v != a.v) | (b.v != b.v);
  uint32_t mask = 0;
  for (int i = 0; i < kLanes; ++i) mask |= static_cast<uint32_t>(nan[i] & 1) << i;
  return mask;
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
  Bits4 bits;
  memcpy(&bits, p, sizeof bits);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#error "pairs of bf16 are read as little-endian words"
#endif
  return {{reinterpret_cast<Float4>(bits << 16)}, {reinterpret_cast<Float4>(bits & 0xFFFF0000U)}};
}
inline StagedPair broadcast_pair(const Staged* p) { return {set1(p[0]), set1(p[1])}; }
inline F32 dot_pairs(F32 acc, const StagedPair& a, const Pairs& b) {
  return fma(a.odd, b.odd, fma(a.even, b.even, acc));
}
// Whole numbers from int8.
inline F32 load(const int8_t* p) {
  using Bytes4 = int8_t __attribute__((vector_size(4)));
  Bytes4 bytes;
  memcpy(&bytes, p, sizeof bytes);
  return {__builtin_convertvector(bytes, Float4)};
}
// Requires values that bf16 holds exactly.
inline Pairs make_pairs(F32 even, F32 odd) { return {even, odd}; }
inline void store_pairs(bf16* p, const Pairs& x) {
  const Bits4 bits = (reinterpret_cast<Bits4>(x.even.v) >> 16) | reinterpret_cast<Bits4>(x.odd.v);
  memcpy(p, &bits, sizeof bits);
}
inline void prefetch(const void* p) { __builtin_prefetch(p); }

}  // namespace
}  // namespace quire::cpu
