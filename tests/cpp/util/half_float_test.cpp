#include "util/half_float.h"

#include <gtest/gtest.h>

#include <cmath>

namespace quire {
namespace {

TEST(HalfFloatTest, EveryBfloat16SurvivesTheWayThere) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = bf16_to_float(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(value))));
    } else {
      EXPECT_EQ(float_to_bf16(value), bits);
    }
  }
}

TEST(HalfFloatTest, Bfloat16RoundsTiesToEven) {
  EXPECT_EQ(float_to_bf16(1.0F + 1.0F / 256), 0x3F80);  // halfway: down to even
  EXPECT_EQ(float_to_bf16(1.0F + 3.0F / 256), 0x3F82);  // halfway: up to even
  EXPECT_EQ(float_to_bf16(1.0F + 1.01F / 256), 0x3F81);
  EXPECT_EQ(float_to_bf16(3.4e38F), 0x7F80);  // beyond the largest: infinity
}

TEST(HalfFloatTest, Float16ValuesAreExact) {
  EXPECT_EQ(fp16_to_float(0x3C00), 1.0F);
  EXPECT_EQ(fp16_to_float(0xC000), -2.0F);
  EXPECT_EQ(fp16_to_float(0x7BFF), 65504.0F);
  EXPECT_EQ(fp16_to_float(0x0001), std::ldexp(1.0F, -24));  // the smallest subnormal
  EXPECT_TRUE(std::isinf(fp16_to_float(0x7C00)));
  EXPECT_TRUE(std::isnan(fp16_to_float(0x7C01)));
}

// By the format's definition.
double value_of_fp16(uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 10 & 0x1F);
  const double mantissa = bits & 0x3FF;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(mantissa + 1024, exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

TEST(HalfFloatTest, EveryFloat16IsWhatItsBitsSayAndSurvivesTheWayThere) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = fp16_to_float(static_cast<uint16_t>(bits));
    if ((bits & 0x7FFF) > 0x7C00) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_TRUE(std::isnan(fp16_to_float(float_to_fp16(value))));
      continue;
    }
    const bool finite = (bits & 0x7FFF) < 0x7C00;
    EXPECT_EQ(value, finite ? value_of_fp16(bits) : std::copysign(INFINITY, bits < 0x8000 ? 1.0 : -1.0));
    EXPECT_EQ(std::signbit(value), bits >= 0x8000);
    EXPECT_EQ(float_to_fp16(value), bits);
  }
}

TEST(HalfFloatTest, Float16RoundsToTheNearestAndTiesToEven) {
  for (uint32_t bits = 0; bits < 0x7C00; ++bits) {
    // Infinity stands where the next power of two would.
    const double above = bits == 0x7BFF ? 65536.0 : value_of_fp16(bits + 1);
    const auto middle = static_cast<float>((value_of_fp16(bits) + above) / 2);
    EXPECT_EQ(float_to_fp16(std::nextafter(middle, 0.0F)), bits);
    EXPECT_EQ(float_to_fp16(middle), bits + (bits & 1));
    EXPECT_EQ(float_to_fp16(std::nextafter(middle, 1e6F)), bits + 1);
    EXPECT_EQ(float_to_fp16(-middle), 0x8000 + bits + (bits & 1));
  }
  EXPECT_EQ(float_to_fp16(3e38F), 0x7C00);
  EXPECT_EQ(float_to_fp16(1e-30F), 0);
}

}  // namespace
}  // namespace quire
