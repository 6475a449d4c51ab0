#include "layers/alibi.h"

#include <gtest/gtest.h>

#include <cmath>

namespace quire {
namespace {

TEST(AlibiTest, SlopesOfAPowerOfTwoAreItsSequence) {
  const std::vector<float> slopes = alibi_slopes(8);
  ASSERT_EQ(slopes.size(), 8U);
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(slopes[i], std::ldexp(1.0F, -static_cast<int>(i) - 1));
}

// Bloom's: of 6 heads four are those of 4, two are the first and third of 8.
TEST(AlibiTest, OtherNumbersTakeEveryOtherOfTheNextPower) {
  EXPECT_EQ(alibi_slopes(6), (std::vector<float>{0.25F, 0.0625F, 1.0F / 64, 1.0F / 256, 0.5F, 0.125F}));
  EXPECT_EQ(alibi_slopes(1), std::vector<float>{1.0F / 256});
  EXPECT_EQ(alibi_slopes(2, 4.0), (std::vector<float>{0.25F, 0.0625F}));
}

}  // namespace
}  // namespace quire
