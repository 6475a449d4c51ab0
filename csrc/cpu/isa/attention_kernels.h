// The softmax of attention: one partition of one row, and the fold of partitions. Include after one
// simd_*.h.
#pragma once

#include "isa/exp.h"
#include "isa/kernels.h"

namespace quire::cpu {
namespace {

inline int least(int a, int b) { return a < b ? a : b; }

// Maxima are kept in units of log2: scores are multiplied by log2(e) together with the scale, and 2^x is
// cheaper than e^x.
//
// Columns outside [begin, end) never enter a result, whatever they hold. The sum runs over the columns of
// the partition in order, and adding the zero of a masked column changes no bit, so it does not matter how
// many masked columns there are.
template <typename P>
void softmax_row(const SoftmaxRow& row, float* max_out, float* sum_out) {
  const bool plain = row.soft_cap == 0 && row.alibi_slope == 0 && row.scale > 0;
  const F32 nothing = set1(kNoScore);
  alignas(64) float transformed[kPartitionTokens];
  const float* scores = row.scores;
  float factor = row.scale * kLog2E;
  if (!plain) {
    for (int c = row.first; c < row.last; c += kLanes) {
      F32 s = mul(load(row.scores + c), set1(row.scale));
      if (row.soft_cap != 0) s = mul(tanh(mul(s, set1(1.0F / row.soft_cap))), set1(row.soft_cap));
      const F32 distance = add(iota(), set1(static_cast<float>(c - row.query_column)));
      store(transformed + c, fma(distance, set1(row.alibi_slope), s));
    }
    scores = transformed;
    factor = kLog2E;
  }
  // Columns [whole_begin, whole_end) lie in vectors that need no mask.
  const int begin = row.begin > row.first ? row.begin : row.first;
  const int end = row.end < row.last ? row.end : row.last;
  const int whole_begin = row.first + (begin - row.first + kLanes - 1) / kLanes * kLanes;
  const int whole_end = end > whole_begin ? whole_begin + (end - whole_begin) / kLanes * kLanes : whole_begin;

  F32 top = nothing;
  const auto mask_top = [&](int from, int to) {
    for (int c = from; c < to; c += kLanes)
      top = max(select_range(begin - c, end - c, load(scores + c), nothing), top);
  };
  mask_top(row.first, least(whole_begin, row.last));
  for (int c = whole_begin; c < whole_end; c += kLanes) top = max(load(scores + c), top);
  mask_top(whole_end, row.last);

  const float highest = reduce_max(top) * factor;
  P* probabilities = static_cast<P*>(row.probabilities);
  const F32 factors = set1(factor), shift = set1(-highest);
  F32 sum = zero();
  const auto power = [&](int c) { return exp2<sizeof(P) == 2>(fma(load(scores + c), factors, shift)); };
  const auto mask_powers = [&](int from, int to) {
    for (int c = from; c < to; c += kLanes) {
      const F32 p = select_range(begin - c, end - c, power(c), zero());
      sum = add(sum, p);
      store(probabilities + c, p);
    }
  };
  mask_powers(row.first, least(whole_begin, row.last));
#pragma GCC unroll 2
  for (int c = whole_begin; c < whole_end; c += kLanes) {
    const F32 p = power(c);
    sum = add(sum, p);
    store(probabilities + c, p);
  }
  mask_powers(whole_end, row.last);
  *max_out = highest;
  *sum_out = reduce_add(sum);
}

inline void fold(int rows, int head_size, float* acc, float* max, float* sum, const float* part,
                 const float* part_max, const float* part_sum) {
  for (int r = 0; r < rows; ++r) {
    const float highest = max[r] > part_max[r] ? max[r] : part_max[r];
    const float keep = exp2_scalar(max[r] - highest);
    const float take = exp2_scalar(part_max[r] - highest);
    const F32 keeps = set1(keep), takes = set1(take);
    float* a = acc + static_cast<int64_t>(r) * head_size;
    const float* b = part + static_cast<int64_t>(r) * head_size;
    for (int d = 0; d < head_size; d += kLanes)
      store(a + d, fma(load(a + d), keeps, mul(load(b + d), takes)));
    sum[r] = sum[r] * keep + part_sum[r] * take;
    max[r] = highest;
  }
}

template <typename T>
void finish(void* out, const float* acc, float max, float sum, const float* sink, int head_size) {
  float scale = 1.0F;
  if (sink != nullptr) {
    const float logit = *sink * kLog2E;
    const float highest = max > logit ? max : logit;
    scale = exp2_scalar(max - highest);
    sum = sum * scale + exp2_scalar(logit - highest);
  }
  const F32 factor = set1(sum > 0 || sum != sum ? scale / sum : 0.0F);
  for (int d = 0; d < head_size; d += kLanes) store(static_cast<T*>(out) + d, mul(load(acc + d), factor));
}

}  // namespace
}  // namespace quire::cpu
