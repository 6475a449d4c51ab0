#include "util/half_float.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace quire
