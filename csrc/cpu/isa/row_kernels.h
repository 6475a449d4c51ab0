// Row by row operations. Include after one simd_*.h.
#pragma once

#include "isa/exp.h"
#include "isa/kernels.h"

namespace quire::cpu {
namespace {

// Two accumulators hide the latency of the additions; more would gain nothing at the lengths of a row.
template <typename T>
float sum_of_squares(const T* x, int64_t n) {
  F32 even = zero(), odd = zero();
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    const F32 a = load(x + i), b = load(x + i + kLanes);
    even = fma(a, a, even);
    odd = fma(b, b, odd);
  }
  for (; i < n; i += kLanes) {
    const int rest = n - i < kLanes ? static_cast<int>(n - i) : kLanes;
    const F32 a = load_part(x + i, rest);
    even = fma(a, a, even);
  }
  return reduce_add(add(even, odd));
}

// The factor of an element. Zero is not added: that would make -0 of a weight 0.
template <bool kOffset>
F32 offset_weight(F32 weight, F32 offset) {
  return kOffset ? add(weight, offset) : weight;
}

template <bool kOffset, typename T>
void scale_row(T* out, const T* x, const T* weight, int64_t n, float scale, float weight_offset) {
  const F32 factor = set1(scale), offset = set1(weight_offset);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    store(out + i, mul(mul(load(x + i), factor), offset_weight<kOffset>(load(weight + i), offset)));
  if (i < n) {
    const int rest = static_cast<int>(n - i);
    const F32 w = offset_weight<kOffset>(load_part(weight + i, rest), offset);
    store_part(out + i, mul(mul(load_part(x + i, rest), factor), w), rest);
  }
}

template <typename T>
void scale_row(T* out, const T* x, const T* weight, int64_t n, float scale, float weight_offset) {
  if (weight_offset == 0.0F) {
    scale_row<false>(out, x, weight, n, scale, weight_offset);
  } else {
    scale_row<true>(out, x, weight, n, scale, weight_offset);
  }
}

inline float inverse_rms(float sum, int64_t n, float eps) {
  return 1.0F / __builtin_sqrtf(sum / static_cast<float>(n) + eps);
}

template <typename T>
void rms_norm(void* out, int64_t out_stride, const void* x, int64_t x_stride, const void* weight,
              int64_t rows, int64_t n, float eps, float weight_offset) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* row = static_cast<const T*>(x) + r * x_stride;
    scale_row(static_cast<T*>(out) + r * out_stride, row, static_cast<const T*>(weight), n,
              inverse_rms(sum_of_squares(row, n), n, eps), weight_offset);
  }
}

template <typename T>
void add_rms_norm(void* out, void* residual, const void* x, const void* weight, int64_t n, float eps,
                  float weight_offset) {
  T* sum = static_cast<T*>(residual);
  const T* addend = static_cast<const T*>(x);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(sum + i, add(load(sum + i), load(addend + i)));
  if (i < n) {
    const int rest = static_cast<int>(n - i);
    store_part(sum + i, add(load_part(sum + i, rest), load_part(addend + i, rest)), rest);
  }
  scale_row(static_cast<T*>(out), sum, static_cast<const T*>(weight), n,
            inverse_rms(sum_of_squares(sum, n), n, eps), weight_offset);
}

template <typename T>
void rotate(void* heads, int64_t num_heads, int64_t head_stride, const float* cos, const float* sin,
            int64_t half) {
  for (int64_t h = 0; h < num_heads; ++h) {
    T* low = static_cast<T*>(heads) + h * head_stride;
    T* high = low + half;
    int64_t i = 0;
    for (; i + kLanes <= half; i += kLanes) {
      const F32 a = load(low + i), b = load(high + i), c = load(cos + i), s = load(sin + i);
      store(low + i, fnma(b, s, mul(a, c)));
      store(high + i, fma(a, s, mul(b, c)));
    }
    if (i < half) {
      const int rest = static_cast<int>(half - i);
      const F32 a = load_part(low + i, rest), b = load_part(high + i, rest);
      const F32 c = load_part(cos + i, rest), s = load_part(sin + i, rest);
      store_part(low + i, fnma(b, s, mul(a, c)), rest);
      store_part(high + i, fma(a, s, mul(b, c)), rest);
    }
  }
}

// The bound keeps the divisor finite; beyond it the result is next to zero anyway.
inline F32 silu(F32 x) { return mul(x, reciprocal(add(set1(1.0F), exp(min(set1(87.0F), sub(zero(), x)))))); }

// x / (1 + exp(-2 sqrt(2 / pi) (x + 0.044715 x^3))): the approximation by tanh, without the tangent, which
// would leave no digits near -1.
inline F32 gelu_tanh(F32 x) {
  const F32 bent = mul(x, fma(mul(x, x), set1(0.044715F), set1(1.0F)));
  const F32 power = min(set1(87.0F), mul(bent, set1(-1.59576912F)));
  return mul(x, reciprocal(add(set1(1.0F), exp(power))));
}

template <typename T, F32 (*kActivation)(F32)>
void activate(void* out, const void* x, const void* factor, int64_t n) {
  const T* from = static_cast<const T*>(x);
  const T* by = static_cast<const T*>(factor);
  T* to = static_cast<T*>(out);
  int64_t i = 0;
  if (by == nullptr) {
    for (; i + kLanes <= n; i += kLanes) store(to + i, kActivation(load(from + i)));
  } else {
    for (; i + kLanes <= n; i += kLanes) store(to + i, mul(kActivation(load(from + i)), load(by + i)));
  }
  if (i < n) {
    const int rest = static_cast<int>(n - i);
    const F32 value = kActivation(load_part(from + i, rest));
    store_part(to + i, by == nullptr ? value : mul(value, load_part(by + i, rest)), rest);
  }
}

inline void soft_cap(float* x, int64_t n, float cap) {
  const F32 bound = set1(cap), inverse = set1(1.0F / cap);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(x + i, mul(bound, tanh(mul(load(x + i), inverse))));
  if (i < n) {
    const int rest = static_cast<int>(n - i);
    store_part(x + i, mul(bound, tanh(mul(load_part(x + i, rest), inverse))), rest);
  }
}

constexpr RowKernels row_kernels() {
  return {.rms_norm = {rms_norm<float>, rms_norm<bf16>},
          .add_rms_norm = {add_rms_norm<float>, add_rms_norm<bf16>},
          .rotate = {rotate<float>, rotate<bf16>},
          .silu = {activate<float, silu>, activate<bf16, silu>},
          .gelu_tanh = {activate<float, gelu_tanh>, activate<bf16, gelu_tanh>},
          .soft_cap = soft_cap};
}

}  // namespace
}  // namespace quire::cpu
