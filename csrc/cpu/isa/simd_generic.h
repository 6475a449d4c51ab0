// Vectors of plain C++: eight lanes that a compiler may map to whatever the baseline has.
#pragma once

#include <math.h>
#include <string.h>

#include "isa/kernels.h"

namespace quire::cpu {
namespace {

using bf16 = uint16_t;  // storage only: overloads on it convert

constexpr int kLanes = 8;
// Rows and vectors of columns that one pass of the matmul kernels keeps in registers.
constexpr int kMaxRows = 4;
constexpr int kColumnVectors = 1;

struct F32 {
  float lane[kLanes];
};

inline float widen(bf16 x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
inline bf16 narrow(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  if (x != x) return static_cast<bf16>((bits >> 16) | 0x40);  // a quiet NaN stays one
  return static_cast<bf16>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

#define QUIRE_LANES for (int i = 0; i < kLanes; ++i)
inline F32 set1(float x) {
  F32 r;
  QUIRE_LANES r.lane[i] = x;
  return r;
}
inline F32 zero() { return set1(0.0F); }
inline F32 load(const float* p) {
  F32 r;
  QUIRE_LANES r.lane[i] = p[i];
  return r;
}
inline F32 load(const bf16* p) {
  F32 r;
  QUIRE_LANES r.lane[i] = widen(p[i]);
  return r;
}
inline void store(float* p, F32 x) { QUIRE_LANES p[i] = x.lane[i]; }
inline void store(bf16* p, F32 x) { QUIRE_LANES p[i] = narrow(x.lane[i]); }
// The first n lanes; the others read as zero and are not written.
inline F32 load_part(const float* p, int n) {
  F32 r;
  QUIRE_LANES r.lane[i] = i < n ? p[i] : 0.0F;
  return r;
}
inline F32 load_part(const bf16* p, int n) {
  F32 r;
  QUIRE_LANES r.lane[i] = i < n ? widen(p[i]) : 0.0F;
  return r;
}
inline void store_part(float* p, F32 x, int n) {
  for (int i = 0; i < n; ++i) p[i] = x.lane[i];
}
inline void store_part(bf16* p, F32 x, int n) {
  for (int i = 0; i < n; ++i) p[i] = narrow(x.lane[i]);
}

inline F32 add(F32 a, F32 b) {
  QUIRE_LANES a.lane[i] += b.lane[i];
  return a;
}
inline F32 sub(F32 a, F32 b) {
  QUIRE_LANES a.lane[i] -= b.lane[i];
  return a;
}
inline F32 mul(F32 a, F32 b) {
  QUIRE_LANES a.lane[i] *= b.lane[i];
  return a;
}
inline F32 div(F32 a, F32 b) {
  QUIRE_LANES a.lane[i] /= b.lane[i];
  return a;
}
// a * b + c; not fused here, fused in the other instruction sets.
inline F32 fma(F32 a, F32 b, F32 c) {
  QUIRE_LANES c.lane[i] += a.lane[i] * b.lane[i];
  return c;
}
// c - a * b
inline F32 fnma(F32 a, F32 b, F32 c) {
  QUIRE_LANES c.lane[i] -= a.lane[i] * b.lane[i];
  return c;
}
// A NaN in b, and only there, comes through.
inline F32 max(F32 a, F32 b) {
  QUIRE_LANES a.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i];
  return a;
}
inline F32 min(F32 a, F32 b) {
  QUIRE_LANES a.lane[i] = a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i];
  return a;
}
// Lanes [begin, end) of `inside`, the others of `outside`; begin and end may lie beyond the vector.
inline F32 select_range(int begin, int end, F32 inside, F32 outside) {
  QUIRE_LANES outside.lane[i] = i >= begin && i < end ? inside.lane[i] : outside.lane[i];
  return outside;
}
// 0, 1, 2, ...
inline F32 iota() {
  F32 r;
  QUIRE_LANES r.lane[i] = static_cast<float>(i);
  return r;
}
inline float reduce_add(F32 x) {
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) x.lane[i] += x.lane[i + half];
  return x.lane[0];
}
inline float reduce_max(F32 x) {
  for (int i = 1; i < kLanes; ++i)
    if (x.lane[i] > x.lane[0]) x.lane[0] = x.lane[i];
  return x.lane[0];
}
inline F32 round_even(F32 x) {
  // Adding 1.5 * 2^23 leaves no room for a fraction. Good for |x| < 2^22.
  QUIRE_LANES x.lane[i] = (x.lane[i] + 12582912.0F) - 12582912.0F;
  return x;
}
// x * 2^n for whole n in [-127, 128]; n = -127 gives 0, n = 128 infinity.
inline F32 scale_by_power(F32 x, F32 n) {
  QUIRE_LANES {
    const uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(n.lane[i]) + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    x.lane[i] *= power;
  }
  return x;
}
inline uint32_t greater_mask(F32 a, F32 b) {
  uint32_t mask = 0;
  QUIRE_LANES mask |= static_cast<uint32_t>(a.lane[i] > b.lane[i]) << i;
  return mask;
}
inline double reduce_add_double(F32 x) {
  double sum = 0;
  QUIRE_LANES sum += static_cast<double>(x.lane[i]);
  return sum;
}
#undef QUIRE_LANES

// bf16 matmuls: the right operand comes in pairs along the depth, the left one is staged as fp32.
using Staged = float;
struct Pairs {
  F32 even, odd;
};
struct StagedPair {
  F32 even, odd;
};
inline Pairs load_pairs(const bf16* p) {
  Pairs r;
  for (int i = 0; i < kLanes; ++i) {
    r.even.lane[i] = widen(p[2 * i]);
    r.odd.lane[i] = widen(p[2 * i + 1]);
  }
  return r;
}
inline StagedPair broadcast_pair(const Staged* p) { return {set1(p[0]), set1(p[1])}; }
inline F32 dot_pairs(F32 acc, const StagedPair& a, const Pairs& b) {
  return fma(a.odd, b.odd, fma(a.even, b.even, acc));
}
inline void prefetch(const void* p) { __builtin_prefetch(p); }

}  // namespace
}  // namespace quire::cpu
