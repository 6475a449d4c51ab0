#pragma once

#include <cstddef>
#include <cstdint>

#include "quire/kernels/ops.h"

namespace quire::cuda {

// Whether a product of few rows of x with an int8 weight has a kernel of its own: the weights stream by once
// and become 16-bit in registers, where tensor cores multiply them.
bool has_few_rows_kernel(TensorView x, const LinearWeight& weight);
void linear_int8_few_rows(const LaunchContext& ctx, TensorView out, TensorView x, const LinearWeight& weight,
                          const float* bias);

// out[i, :] = row row_begin + i of what an int8 weight stands for, rounded to out's dtype.
//   out [rows, K] fp32 | 16-bit, dense
void dequantize_rows(const LaunchContext& ctx, TensorView out, const LinearWeight& weight, int64_t row_begin);

}  // namespace quire::cuda
