// The float formats of tensors, in plain arithmetic. The thread sanitizer is told by callers what is read and
// written here.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "quire/kernels/tensor_view.h"
#include "util/sanitizer_ranges.h"

namespace quire {

// To nearest, ties to even; overflow becomes infinity.
QUIRE_RANGES_TOLD inline float round_to_half(float x) {
  if (!std::isfinite(x) || x == 0) return x;
  int exponent;
  std::frexp(x, &exponent);  // |x| in [2^(exponent - 1), 2^exponent)
  // The distance between neighbours: 11 significant bits, down to the subnormals' 2^-24.
  const float step = std::ldexp(1.0F, std::max(exponent - 11, -24));
  const float rounded = std::nearbyint(x / step) * step;
  return std::abs(rounded) > 65504.0F ? std::copysign(INFINITY, x) : rounded;
}

// x is one of the format's values.
QUIRE_RANGES_TOLD inline uint16_t half_bits(float x) {
  const auto sign = static_cast<uint16_t>(std::signbit(x) ? 0x8000 : 0);
  const float magnitude = std::abs(x);
  if (!(magnitude <= 65504.0F)) return sign | (std::isnan(x) ? 0x7E00 : 0x7C00);
  if (magnitude < 0x1p-14F) return sign | static_cast<uint16_t>(magnitude * 0x1p24F);
  const uint32_t bits = std::bit_cast<uint32_t>(magnitude);
  return sign | static_cast<uint16_t>((bits >> 13) - (112U << 10));
}

QUIRE_RANGES_TOLD inline float half_value(uint16_t bits) {
  const uint32_t exponent = bits >> 10 & 31, fraction = bits & 1023;
  const float magnitude = exponent == 31  ? (fraction != 0 ? NAN : INFINITY)
                          : exponent == 0 ? static_cast<float>(fraction) * 0x1p-24F
                                          : std::bit_cast<float>((exponent + 112) << 23 | fraction << 13);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

QUIRE_RANGES_TOLD inline float round_to(DType dtype, float x) {
  if (dtype == DType::kFloat32) return x;
  if (dtype == DType::kFloat16) return round_to_half(x);
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000U);
}

// An element of `dtype` in memory, and back.
QUIRE_RANGES_TOLD inline void store_float(DType dtype, void* at, float x) {
  const float rounded = round_to(dtype, x);
  switch (dtype) {
    case DType::kFloat32: *static_cast<float*>(at) = rounded; break;
    case DType::kFloat16: *static_cast<uint16_t*>(at) = half_bits(rounded); break;
    default: *static_cast<uint16_t*>(at) = static_cast<uint16_t>(std::bit_cast<uint32_t>(rounded) >> 16);
  }
}
QUIRE_RANGES_TOLD inline float load_float(DType dtype, const void* at) {
  switch (dtype) {
    case DType::kFloat32: return *static_cast<const float*>(at);
    case DType::kFloat16: return half_value(*static_cast<const uint16_t*>(at));
    default: return std::bit_cast<float>(static_cast<uint32_t>(*static_cast<const uint16_t*>(at)) << 16);
  }
}

}  // namespace quire
