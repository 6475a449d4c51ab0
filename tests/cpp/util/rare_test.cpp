#include "util/rare.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace quire {
namespace {

using Text = Rare<std::string>;

TEST(RareTest, NothingTakesAPointer) {
  const Text none, empty(std::string{});
  EXPECT_EQ(sizeof(Text), sizeof(void*));
  for (const Text* text : {&none, &empty}) {
    EXPECT_TRUE(text->empty());
    EXPECT_EQ(**text, "");
    EXPECT_EQ((*text)->size(), 0U);
  }
}

TEST(RareTest, CopiesHaveAValueEach) {
  Text a(std::string("one"));
  Text b = a;
  b.edit() += " two";
  EXPECT_EQ(*a, "one");
  EXPECT_EQ(*b, "one two");
  a = b;
  b.edit() = "three";
  EXPECT_EQ(*a, "one two");
  b = Text();
  EXPECT_TRUE(b.empty());
}

TEST(RareTest, WhatIsTakenIsGone) {
  Text a;
  EXPECT_EQ(a.take(), "");
  a.edit() = "one";
  Text b = std::move(a);
  EXPECT_EQ(b.take(), "one");
  EXPECT_TRUE(b.empty());
  b = std::string("two");
  b = std::string();
  EXPECT_TRUE(b.empty());
}

}  // namespace
}  // namespace quire
