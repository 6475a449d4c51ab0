// What the products of experts have in common.
#pragma once

#include "common/types.cuh"
#include "experts/plan.h"
#include "quire/kernels/ops.h"

namespace quire::cuda {

// out[slot] = of expert e of the slot:
//   with kGated  activation(gate x) * (up x), where weight e is [2 n, k], the gate's rows first
//   else         weight e [n, k] times x
// x is a token's row with kGated, else the slot's. A bias is added to each product.
template <typename T>
struct ExpertProduct {
  ExpertPlan plan;
  const T* x;
  int64_t x_stride;
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

// activation(gate) * up.
__device__ __forceinline__ float activate_gated(float gate, float up, Activation activation) {
  switch (activation) {
    case Activation::kSilu: return __fdividef(gate, 1.0F + __expf(-gate)) * up;
    case Activation::kGelu: return 0.5F * gate * erfcf(gate * -0.70710678F) * up;
    case Activation::kGeluTanh:
      return __fdividef(gate, 1.0F + __expf(-1.59576912F * fmaf(0.044715F * gate * gate, gate, gate))) * up;
    case Activation::kRelu: return fmaxf(gate, 0.0F) * up;
    case Activation::kReluSquared: return fmaxf(gate, 0.0F) * fmaxf(gate, 0.0F) * up;
    case Activation::kClampedSwiglu: {
      const float g = fminf(gate, 7.0F), u = fminf(fmaxf(up, -7.0F), 7.0F);
      return __fdividef(g, 1.0F + __expf(-1.702F * g)) * (u + 1.0F);
    }
  }
  return 0.0F;
}

}  // namespace quire::cuda
