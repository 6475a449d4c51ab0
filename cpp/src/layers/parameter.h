// Small parameters, held in the model's dtype.
#pragma once

#include <cstdint>
#include <span>

#include "device/buffer.h"
#include "quire/kernels/tensor_view.h"

namespace quire {

// Copies `count` values (fp32, fp16 or bf16) to `dtype` (fp32 or bf16, rounded to nearest even).
void convert(void* out, DType dtype, const void* values, DType values_dtype, int64_t count);

// A vector converted to `dtype` (fp32 or bf16).
class Parameter {
 public:
  Parameter() = default;
  Parameter(std::span<const float> values, DType dtype);
  const TensorView& view() const { return view_; }

 private:
  Buffer buffer_;
  TensorView view_;
};

}  // namespace quire
