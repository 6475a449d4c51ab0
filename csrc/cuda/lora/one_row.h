// A linear of one row with what its adapter adds.
#pragma once

#include "lora/params.cuh"
#include "quire/kernels/launch_context.h"
#include "quire/kernels/ops.h"

namespace quire::cuda {

// linear_one_row where has_one_row_kernel says so, and what the adapter of the row adds, if it has one: `b`
// times p.h, which the kernel in front makes. Summed in float32 and rounded once.
void linear_one_row_lora(const LaunchContext& ctx, TensorView out, TensorView x, const LinearWeight& weight,
                         const float* bias, const LoraParams& p);

// linear_one_row_gated of that.
void linear_one_row_gated_lora(const LaunchContext& ctx, TensorView out, TensorView x,
                               const LinearWeight& weight, const float* bias, Activation activation,
                               const LoraParams& p);

}  // namespace quire::cuda
