#include "common/divisor.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace quire::cuda {
namespace {

TEST(DivisorTest, DividesAsDivisionDoes) {
  for (const int divisor : {1, 2, 3, 7, 24, 255, 256, 257, 768, 1407, 1408, 14336, 28672, 65535}) {
    const Divisor d(divisor);
    for (int multiple = 0; multiple <= 127; ++multiple) {
      for (const int offset : {-1, 0, 1, divisor / 2}) {
        const int n = multiple * divisor + offset;
        if (n < 0) continue;
        ASSERT_TRUE(Divisor::is_exact(n, divisor));
        ASSERT_EQ(d.quotient(n), n / divisor) << n << " / " << divisor;
        ASSERT_EQ(d.rest(n), n % divisor) << n << " % " << divisor;
      }
    }
  }
}

TEST(DivisorTest, SaysWhatItDividesExactly) {
  EXPECT_TRUE(Divisor::is_exact((1 << 23) - 1, 1 << 17));
  EXPECT_FALSE(Divisor::is_exact(1 << 23, 1));        // the product would not fit
  EXPECT_FALSE(Divisor::is_exact(1 << 22, 1 << 18));  // the factor's error would show
  EXPECT_FALSE(Divisor::is_exact(int64_t{1} << 40, 3));
  // The largest numbers for which it says so.
  for (const int divisor : {1, 3, 131071, 131073, 262143, 1 << 20}) {
    const Divisor d(divisor);
    int64_t most = (int64_t{1} << 40) / divisor - 1;
    most = std::min<int64_t>(most, (1 << 23) - 1);
    ASSERT_TRUE(Divisor::is_exact(most, divisor)) << divisor;
    for (int64_t n = most; n > most - 1000 && n >= 0; --n)
      ASSERT_EQ(d.quotient(static_cast<int>(n)), n / divisor) << n << " / " << divisor;
  }
}

}  // namespace
}  // namespace quire::cuda
