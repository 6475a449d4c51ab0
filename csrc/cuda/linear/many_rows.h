// Gated linears of many rows, as when prompts are read: they wait for the tensor cores.
#pragma once

#include "quire/kernels/launch_context.h"
#include "quire/kernels/ops.h"

namespace quire::cuda {

// Whether linear_many_rows_gated computes it on the current device, and quicker than a linear and what
// activates it: 16-bit weights of x's type, which is out's, all rows at multiples of 16 bytes, n a multiple
// of 16, and rows of x and outputs that fill the device.
bool has_many_rows_gated(TensorView out, TensorView x, const LinearWeight& weight);

// out[t, i] = activation(y[t, i]) * y[t, n / 2 + i] of y = x weight^T + bias, each rounded to the type of x
// as if it had been written down. Summed in float32, in one order for all numbers of rows. `bias` [n] or
// null.
void linear_many_rows_gated(const LaunchContext& ctx, TensorView out, TensorView x,
                            const LinearWeight& weight, const float* bias, Activation activation);

}  // namespace quire::cuda
