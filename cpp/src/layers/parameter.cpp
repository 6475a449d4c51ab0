#include "layers/parameter.h"

#include <cstring>

#include "util/check.h"
#include "util/half_float.h"
#include "weights/checkpoint.h"

namespace quire {

void convert(void* out, DType dtype, const void* values, DType values_dtype, int64_t count) {
  if (dtype == values_dtype) {
    if (count > 0) std::memcpy(out, values, static_cast<size_t>(count) * dtype_bytes(dtype));
    return;
  }
  QUIRE_CHECK(dtype == DType::kFloat32 || dtype == DType::kBFloat16);
  for (int64_t i = 0; i < count; ++i) {
    const float value = load_float(values, values_dtype, i);
    if (dtype == DType::kFloat32) {
      static_cast<float*>(out)[i] = value;
      continue;
    }
    static_cast<uint16_t*>(out)[i] = float_to_bf16(value);
  }
}

Parameter::Parameter(std::span<const float> values, DType dtype)
    : buffer_(values.size() * dtype_bytes(dtype)),
      view_(buffer_.data(), dtype, static_cast<int64_t>(values.size())) {
  convert(buffer_.data(), dtype, values.data(), DType::kFloat32, static_cast<int64_t>(values.size()));
}

}  // namespace quire
