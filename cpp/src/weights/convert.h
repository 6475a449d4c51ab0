// Values from one floating-point type to another, on the host.
#pragma once

#include <cstdint>

#include "quire/kernels/tensor_view.h"

namespace quire {

// Copies `count` values between any two of fp32, fp16 and bf16, rounded to nearest even; or from int8, or
// from uint8 that stand for 128 less, to int8 or fp32.
void convert(void* out, DType dtype, const void* values, DType values_dtype, int64_t count);

// Whether none of `count` values of fp32, fp16 or bf16 is infinite or NaN.
bool all_finite(const void* values, DType dtype, int64_t count);

// Writes values [begin, begin + count) of the endless sequence that `seed` names, each uniform in
// [center - scale, center + scale), as `dtype` (fp32 | fp16 | bf16).
void fill_dummy(void* out, DType dtype, int64_t begin, int64_t count, float center, float scale,
                uint64_t seed);

}  // namespace quire
