#include "common/divisor.h"

#include <gtest/gtest.h>

namespace quire::cuda {
namespace {

TEST(DivisorTest, DividesAsDivisionDoes) {
  for (const int divisor : {1, 2, 3, 7, 24, 255, 256, 257, 768, 1407, 1408, 14336, 28672, 65535}) {
    const Divisor d(divisor);
    EXPECT_EQ(d.divisor(), divisor);
    for (int multiple = 0; multiple <= 127; ++multiple) {
      for (const int offset : {-1, 0, 1, divisor / 2}) {
        const int n = multiple * divisor + offset;
        if (n < 0) continue;
        ASSERT_EQ(d.quotient(n), n / divisor) << n << " / " << divisor;
        ASSERT_EQ(d.rest(n), n % divisor) << n << " % " << divisor;
      }
    }
  }
}

}  // namespace
}  // namespace quire::cuda
