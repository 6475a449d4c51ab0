// What the products of experts have in common.
#pragma once

#include "common/activation.cuh"
#include "common/weight_stream.cuh"
#include "experts/plan.h"

namespace quire::cuda {

// out[slot] = of expert e of the slot:
//   with kGated  activation(gate x) * (up x), where weight e is [2 n, k], the gate's rows first
//   else         weight e [n, k] times x
// x has tokens' rows with kGated, but for grouped_wgmma.cu's of large items, else slots'. A bias is added to
// each product.
template <typename T>
struct ExpertProduct {
  ExpertPlan plan;
  const T* x;
  int64_t x_stride, x_rows;
  const T* weight;
  int64_t weight_stride;  // elements between experts
  const float* bias;      // [E, rows of a weight] or null
  T* out;                 // [slots, n]
  int n, k;
  Activation activation;

  // Of an expert, or null.
  __device__ __forceinline__ const float* bias_of(int expert, bool is_gated) const {
    return bias != nullptr ? bias + static_cast<int64_t>(expert) * n * (is_gated ? 2 : 1) : nullptr;
  }
};

}  // namespace quire::cuda
