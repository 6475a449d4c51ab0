// Linears of few rows, as when a few requests generate: they wait for the weight, as those of one row do.
#pragma once

#include "quire/kernels/launch_context.h"
#include "quire/kernels/ops.h"

namespace quire::cuda {

// Whether linear_few_rows computes it: x [2 to 16, k], 16-bit weights of x's type, all rows at multiples of
// 16 bytes.
bool has_few_rows_linear(TensorView out, TensorView x, const LinearWeight& weight);

// The weight does not change while kernels that were launched before may run: it is read before they have
// ended. out[t, :] = weight x[t, :] + bias, summed in float32, in an order that depends on the weight's shape
// and the device alone. `bias` [n] or null. out is of x's type or float32.
void linear_few_rows(const LaunchContext& ctx, TensorView out, TensorView x, const LinearWeight& weight,
                     const float* bias);

}  // namespace quire::cuda
