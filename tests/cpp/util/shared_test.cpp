#include "util/shared.h"

#include <gtest/gtest.h>

#include <vector>

namespace quire {
namespace {

using Numbers = Shared<std::vector<int>>;

TEST(SharedTest, CopiesShareTheValue) {
  const Numbers a{1, 2, 3};
  const Numbers b = a;
  EXPECT_EQ(a->data(), b->data());
  EXPECT_EQ(a.pointer(), b.pointer());
}

TEST(SharedTest, WhoeverEditsChangesNobodyElses) {
  Numbers a{1, 2, 3};
  const int* const before = a->data();
  a.edit()[0] = 5;
  EXPECT_EQ(a->data(), before);  // nobody else had it
  const Numbers b = a;
  a.edit()[0] = 7;
  EXPECT_EQ(*b, (std::vector<int>{5, 2, 3}));
  EXPECT_EQ(*a, (std::vector<int>{7, 2, 3}));
  EXPECT_NE(a, b);
}

TEST(SharedTest, ADefaultIsAnEmptyValue) {
  Numbers a;
  EXPECT_TRUE(a->empty());
  EXPECT_TRUE(a.pointer()->empty());
  a.edit().push_back(1);
  EXPECT_TRUE(Numbers()->empty());
}

}  // namespace
}  // namespace quire
