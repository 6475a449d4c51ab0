// Activations, the same wherever they are fused.
#pragma once

#include <type_traits>

#include "quire/kernels/ops.h"

namespace quire::cuda {

// Of all that are applied without a factor.
template <Activation kActivation>
__device__ __forceinline__ float activated(float x) {
  static_assert(kActivation != Activation::kClampedSwiglu);
  if constexpr (kActivation == Activation::kSilu) {
    return __fdividef(x, 1.0F + __expf(-x));
  } else if constexpr (kActivation == Activation::kGelu) {
    // Not as one plus erf: where that is near -1, it leaves no digits.
    return 0.5F * x * erfcf(x * -0.70710678F);
  } else if constexpr (kActivation == Activation::kGeluTanh) {
    // x * (1 + tanh(u)) / 2 is x / (1 + exp(-2 u)).
    return __fdividef(x, 1.0F + __expf(-1.59576912F * fmaf(0.044715F * x * x, x, x)));
  } else {
    const float positive = x < 0.0F ? 0.0F : x;  // NaN stays
    return kActivation == Activation::kRelu ? positive : positive * positive;
  }
}

// activation(gate) * up.
template <Activation kActivation>
__device__ __forceinline__ float activate_gated(float gate, float up) {
  if constexpr (kActivation == Activation::kClampedSwiglu) {
    const float g = fminf(gate, 7.0F), u = fminf(fmaxf(up, -7.0F), 7.0F);
    return __fdividef(g, 1.0F + __expf(-1.702F * g)) * (u + 1.0F);
  } else {
    return activated<kActivation>(gate) * up;
  }
}

// Calls f with the activation as a type's value. In kernels outside of unrolled loops: the code of all six
// between every two elements would not stay in the instruction cache.
template <typename F>
__host__ __device__ __forceinline__ void dispatch_activation(Activation activation, F f) {
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
