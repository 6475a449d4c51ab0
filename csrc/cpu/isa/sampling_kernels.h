// Passes over a row of logits. Include after one simd_*.h.
#pragma once

#include "isa/exp.h"
#include "isa/kernels.h"

namespace quire::cpu {
namespace {

// NaN when a logit is.
inline float row_max(const float* x, int64_t n) {
  F32 best[4];
  for (F32& b : best) b = set1(-__builtin_inff());
  uint32_t nan = 0;
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    F32 v[4];
    for (int j = 0; j < 4; ++j) v[j] = load(x + i + j * kLanes);
    nan |= nan_mask(v[0], v[1]) | nan_mask(v[2], v[3]);
    for (int j = 0; j < 4; ++j) best[j] = max(v[j], best[j]);
  }
  F32 m = max(max(best[0], best[1]), max(best[2], best[3]));
  for (; i + kLanes <= n; i += kLanes) {
    const F32 v = load(x + i);
    nan |= nan_mask(v, v);
    m = max(v, m);
  }
  float result = reduce_max(m);
  for (; i < n; ++i) {
    nan |= x[i] != x[i];
    if (x[i] > result) result = x[i];
  }
  return nan != 0 ? __builtin_nanf("") : result;
}

inline int64_t row_argmax(const float* x, int64_t n) {
  const float best = row_max(x, n);
  if (best != best) return -1;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const uint32_t less = greater_mask(set1(best), load(x + i));
    if (less == (uint32_t{1} << kLanes) - 1) continue;
    for (int j = 0; j < kLanes; ++j)
      if (x[i + j] == best) return i + j;
  }
  for (; i < n; ++i)
    if (x[i] == best) return i;
  return 0;
}

inline double exp_sum(float* out, const float* x, int64_t n, float max, float scale) {
  // A lane sums 64 elements in fp32, then hands over to double, so that a large vocabulary loses nothing.
  constexpr int64_t kRun = 64 * kLanes;
  const F32 top = set1(max), factor = set1(scale);
  double total = 0;
  for (int64_t run = 0; run < n; run += kRun) {
    const int64_t end = n - run < kRun ? n : run + kRun;
    F32 sum = zero();
    int64_t i = run;
    for (; i + kLanes <= end; i += kLanes) {
      const F32 e = exp(mul(sub(load(x + i), top), factor));
      sum = add(sum, e);
      if (out != nullptr) store(out + i, e);
    }
    if (i < end) {
      const int rest = static_cast<int>(end - i);
      const F32 e = exp(mul(sub(load_part(x + i, rest), top), factor));
      sum = add(sum, select_range(0, rest, e, zero()));
      if (out != nullptr) store_part(out + i, e, rest);
    }
    total += reduce_add_double(sum);
  }
  return total;
}

inline void subtract(float* out, const float* x, int64_t n, float value) {
  const F32 v = set1(value);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, sub(load(x + i), v));
  if (i < n) {
    const int rest = static_cast<int>(n - i);
    store_part(out + i, sub(load_part(x + i, rest), v), rest);
  }
}

inline int64_t collect_above(const float* x, int64_t n, float threshold, int32_t* indices, float* values) {
  const F32 bound = set1(threshold);
  int64_t count = 0, i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    uint32_t mask = greater_mask(load(x + i), bound);
    for (; mask != 0; mask &= mask - 1) {
      const int64_t index = i + __builtin_ctz(mask);
      indices[count] = static_cast<int32_t>(index);
      values[count++] = x[index];
    }
  }
  for (; i < n; ++i) {
    if (!(x[i] > threshold)) continue;
    indices[count] = static_cast<int32_t>(i);
    values[count++] = x[i];
  }
  return count;
}

constexpr SamplingKernels sampling_kernels() {
  return {.max = row_max,
          .argmax = row_argmax,
          .exp_sum = exp_sum,
          .subtract = subtract,
          .collect_above = collect_above};
}

}  // namespace
}  // namespace quire::cpu
