// Linears of one row, as when a single request generates: a matrix times a vector, which waits for the
// weight.
#pragma once

#include "quire/kernels/launch_context.h"
#include "quire/kernels/ops.h"

namespace quire::cuda {

// Whether linear_one_row computes it: x [1, k], 16-bit weights of x's type, all at multiples of 16 bytes.
bool has_one_row_kernel(TensorView out, TensorView x, const LinearWeight& weight);

// The weight does not change while kernels that were launched before may run: it is read before they have
// ended. out[0, :] = weight x[0, :] + bias, summed in float32. `bias` [n] or null. out is of x's type or
// float32.
void linear_one_row(const LaunchContext& ctx, TensorView out, TensorView x, const LinearWeight& weight,
                    const float* bias);

// out[0, i] = activation(y[i]) * y[n / 2 + i] of those y, each rounded to the type of x and out as if it had
// been written down.
void linear_one_row_gated(const LaunchContext& ctx, TensorView out, TensorView x, const LinearWeight& weight,
                          const float* bias, Activation activation);

}  // namespace quire::cuda
