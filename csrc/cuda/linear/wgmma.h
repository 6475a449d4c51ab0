// Linears of some tens of rows, as when many requests generate: they wait for the weight, which the tensor
// cores take from shared memory.
#pragma once

#include "quire/kernels/launch_context.h"
#include "quire/kernels/ops.h"

namespace quire::cuda {

// Whether linear_wgmma computes it on the current device: x [9 to 64, k], or [2 to 64, k] where the
// weight is large, 16-bit weights of x's type, all rows at multiples of 16 bytes.
bool has_wgmma_linear(TensorView out, TensorView x, const LinearWeight& weight);

// The weight does not change while kernels that were launched before may run: it is read before they have
// ended. out[t, :] = weight x[t, :] + bias, summed in float32, in an order that depends on the weight's
// shape, the number of rows and the device. `bias` [n] or null. out is of x's type or float32.
void linear_wgmma(const LaunchContext& ctx, TensorView out, TensorView x, const LinearWeight& weight,
                  const float* bias);

// out[t, i] = activation(y[t, i]) * y[t, n / 2 + i] of those y, each rounded to the type of x and out as if
// it had been written down. n is a multiple of 16.
void linear_wgmma_gated(const LaunchContext& ctx, TensorView out, TensorView x, const LinearWeight& weight,
                        const float* bias, Activation activation);

}  // namespace quire::cuda
