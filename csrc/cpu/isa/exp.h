// exp and tanh of a vector. Include after one simd_*.h.
#pragma once

namespace quire::cpu {
namespace {

// exp(x) within 2 ulp; 0 below -87.4, infinity above 88.4, NaN for NaN.
//
// x = n ln 2 + r with |r| <= ln 2 / 2; ln 2 in two parts, the first short enough that n times it is exact.
inline F32 exp(F32 x) {
  x = max(set1(-88.0F), x);
  x = min(set1(89.0F), x);
  const F32 n = round_even(mul(x, set1(1.44269504F)));
  F32 r = fnma(n, set1(0.693359375F), x);
  r = fnma(n, set1(-2.12194440e-4F), r);
  // The Taylor series is within 1e-8 of the best polynomial of its degree here.
  F32 p = set1(1.0F / 5040);
  p = fma(p, r, set1(1.0F / 720));
  p = fma(p, r, set1(1.0F / 120));
  p = fma(p, r, set1(1.0F / 24));
  p = fma(p, r, set1(1.0F / 6));
  p = fma(p, r, set1(0.5F));
  p = fma(p, r, set1(1.0F));
  p = fma(p, r, set1(1.0F));
  return scale_by_power(p, n);
}

constexpr float kLog2E = 1.44269504F;

// 2^x for x <= 0, exactly 1 for 0, 0 below -126.5. The relative error is 2e-9 plus rounding, or 3e-6 when
// the result is to be rounded to bf16 anyway. The coefficients are those of the polynomials with the
// smallest relative error on [-1/2, 1/2].
template <bool kCoarse>
F32 exp2(F32 x) {
  x = max(set1(-127.0F), x);
  const F32 n = round_even(x);
  const F32 r = sub(x, n);
  F32 p;
  if constexpr (kCoarse) {
    p = set1(0.009570102F);
    p = fma(p, r, set1(0.05591786F));
    p = fma(p, r, set1(0.24024744F));
    p = fma(p, r, set1(0.6931218F));
  } else {
    p = set1(0.00015345812F);
    p = fma(p, r, set1(0.0013399931F));
    p = fma(p, r, set1(0.009618489F));
    p = fma(p, r, set1(0.055503286F));
    p = fma(p, r, set1(0.24022646F));
    p = fma(p, r, set1(0.6931472F));
  }
  return scale_by_power(fma(p, r, set1(1.0F)), n);
}

inline float exp2_scalar(float x) {
  alignas(64) float lanes[kLanes];
  store(lanes, exp2<false>(set1(x)));
  return lanes[0];
}

// tanh(x) = 1 - 2 / (exp(2 x) + 1), within 1e-7 absolute.
inline F32 tanh(F32 x) {
  const F32 e = exp(add(x, x));
  return sub(set1(1.0F), div(set1(2.0F), add(e, set1(1.0F))));
}

}  // namespace
}  // namespace quire::cpu
