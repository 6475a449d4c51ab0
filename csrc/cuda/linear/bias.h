#pragma once

#include "quire/kernels/launch_context.h"
#include "quire/kernels/tensor_view.h"

namespace quire::cuda {

// out[t, n] = bias[n].   out [T, N] fp32 | 16-bit, rows strided; bias [N] fp32
void broadcast_bias(const LaunchContext& ctx, TensorView out, const float* bias);

}  // namespace quire::cuda
