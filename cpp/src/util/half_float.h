// 16-bit floating point, one value at a time: for loading weights and for exchanging sums, not for kernels.
#pragma once

#include <bit>
#include <cstdint>

namespace quire {

// Everything here chooses by masks instead of branches: loops over it become vector code.
inline uint32_t choose(bool condition, uint32_t yes, uint32_t no) {
  const uint32_t mask = 0U - static_cast<uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

inline float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// Rounds to nearest even; NaN stays NaN.
inline uint16_t float_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = bits + 0x7FFF + (bits >> 16 & 1);
  return static_cast<uint16_t>(choose((bits & 0x7FFFFFFF) > 0x7F800000, bits | 0x400000, rounded) >> 16);
}

inline float fp16_to_float(uint16_t bits) {
  const uint32_t magnitude = bits & 0x7FFF;
  // The exponent's bias is 112 less than fp32's; infinity and NaN need as much again.
  const uint32_t normal = (magnitude << 13) + 0x38000000 + choose(magnitude >= 0x7C00, 0x38000000, 0);
  const float subnormal = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24F;
  const uint32_t wide = choose(magnitude < 0x400, std::bit_cast<uint32_t>(subnormal), normal);
  return std::bit_cast<float>(wide | static_cast<uint32_t>(bits & 0x8000) << 16);
}

// Rounds to nearest even, to infinity from 65520 on; NaN stays NaN.
inline uint16_t float_to_fp16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  const uint32_t normal = (magnitude + 0xFFF + (magnitude >> 13 & 1) - 0x38000000) >> 13;
  // Below 2^-14 the result is a multiple of 2^-24, which is the last place of 0.5: adding it rounds.
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3F000000;
  uint32_t half = choose(magnitude < 0x38800000, subnormal, normal);
  half = choose(magnitude >= 0x477FF000, 0x7C00, half);
  half = choose(magnitude > 0x7F800000, 0x7E00, half);
  return static_cast<uint16_t>(half | (bits >> 16 & 0x8000));
}

}  // namespace quire
