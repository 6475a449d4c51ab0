// What the products of experts have in common.
#pragma once

#include <type_traits>

#include "common/weight_stream.cuh"
#include "experts/plan.h"
#include "quire/kernels/ops.h"

namespace quire::cuda {

// out[slot] = of expert e of the slot:
//   with kGated  activation(gate x) * (up x), where weight e is [2 n, k], the gate's rows first
//   else         weight e [n, k] times x
// x is a token's row with kGated, but for grouped_wgmma.cu's, else the slot's. A bias is added to each
// product.
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
template <Activation kActivation>
__device__ __forceinline__ float activate_gated(float gate, float up) {
  if constexpr (kActivation == Activation::kSilu) {
    return __fdividef(gate, 1.0F + __expf(-gate)) * up;
  } else if constexpr (kActivation == Activation::kGelu) {
    return 0.5F * gate * erfcf(gate * -0.70710678F) * up;
  } else if constexpr (kActivation == Activation::kGeluTanh) {
    return __fdividef(gate, 1.0F + __expf(-1.59576912F * fmaf(0.044715F * gate * gate, gate, gate))) * up;
  } else if constexpr (kActivation == Activation::kRelu) {
    return fmaxf(gate, 0.0F) * up;
  } else if constexpr (kActivation == Activation::kReluSquared) {
    return fmaxf(gate, 0.0F) * fmaxf(gate, 0.0F) * up;
  } else {
    static_assert(kActivation == Activation::kClampedSwiglu);
    const float g = fminf(gate, 7.0F), u = fminf(fmaxf(up, -7.0F), 7.0F);
    return __fdividef(g, 1.0F + __expf(-1.702F * g)) * (u + 1.0F);
  }
}

// Calls f with the activation as a type's value. Outside of unrolled loops: the code of all six between every
// two elements would not stay in the instruction cache.
template <typename F>
__device__ __forceinline__ void dispatch_activation(Activation activation, F f) {
  switch (activation) {
    case Activation::kSilu: return f(std::integral_constant<Activation, Activation::kSilu>{});
    case Activation::kGelu: return f(std::integral_constant<Activation, Activation::kGelu>{});
    case Activation::kGeluTanh: return f(std::integral_constant<Activation, Activation::kGeluTanh>{});
    case Activation::kRelu: return f(std::integral_constant<Activation, Activation::kRelu>{});
    case Activation::kReluSquared: return f(std::integral_constant<Activation, Activation::kReluSquared>{});
    case Activation::kClampedSwiglu:
      return f(std::integral_constant<Activation, Activation::kClampedSwiglu>{});
  }
}

__device__ __forceinline__ float activate_gated(float gate, float up, Activation activation) {
  float out = 0.0F;
  dispatch_activation(activation, [&](auto kind) { out = activate_gated<decltype(kind)::value>(gate, up); });
  return out;
}

}  // namespace quire::cuda
