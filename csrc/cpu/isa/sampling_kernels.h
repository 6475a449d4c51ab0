// Passes over a row of logits. Include after one simd_*.h.
#pragma once

#include "isa/exp.h"
#include "isa/kernels.h"
#include "quire/kernels/draw_math.h"

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

inline uint32_t lowest(const uint32_t* x, int64_t n) {
  uint32_t result = UINT32_MAX;
  for (int64_t i = 0; i < n; ++i) result = x[i] < result ? x[i] : result;
  return result;
}

// Loops over blocks, which a compiler turns into vectors. The lowest word makes the largest noise, so most
// blocks are known to hold no winner before their noise is.
inline int64_t draw(const float* x, int64_t n, float scale, uint64_t seed, int64_t position) {
  constexpr int64_t kGroups = 64, kBlock = 4 * kGroups;
  uint32_t words[4 * kGroups], bits[kBlock];
  float scores[kBlock];
  float best = -__builtin_inff();
  int64_t best_index = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const auto first = static_cast<uint32_t>(begin / 4);
    for (uint32_t g = 0; g < kGroups; ++g) {
      const draw_math::Words group = draw_math::words_of_group(seed, position, first + g);
      for (int j = 0; j < 4; ++j) words[j * kGroups + g] = group.at[j];
    }
    const int64_t count = n - begin < kBlock ? n - begin : kBlock;
    const float noise = draw_math::gumbel(lowest(words, kBlock)) + draw_math::kGumbelSlack;
    if (draw_math::score_of(row_max(x + begin, count), scale, noise) <= best) continue;
    for (int64_t g = 0; g < kGroups; ++g)
      for (int64_t j = 0; j < 4; ++j) bits[4 * g + j] = words[j * kGroups + g];
    for (int64_t i = 0; i < count; ++i)
      scores[i] = draw_math::score_of(x[begin + i], scale, draw_math::gumbel(bits[i]));
    const float highest = row_max(scores, count);
    if (!(highest > best)) continue;
    best = highest;
    int64_t i = 0;
    while (scores[i] != highest) ++i;
    best_index = begin + i;
  }
  return best_index;
}

inline uint64_t mass_sum(const float* x, int64_t n, float highest, float scale, float min_p) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float weight = draw_math::weight_of(draw_math::distance_of(highest, x[i], scale));
    sum += draw_math::mass_of(weight >= min_p ? weight : 0.0F);
  }
  return sum;
}

constexpr SamplingKernels sampling_kernels() {
  return {.max = row_max,
          .argmax = row_argmax,
          .exp_sum = exp_sum,
          .subtract = subtract,
          .collect_above = collect_above,
          .draw = draw,
          .mass_sum = mass_sum};
}

}  // namespace
}  // namespace quire::cpu
