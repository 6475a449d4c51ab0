#include "quire/error.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

std::string told(const std::string& message) { return InvalidArgument(message).what(); }

TEST(ErrorTest, AMessageIsOneLineOfText) {
  EXPECT_EQ(told("'é字😀' is not supported"), "'é字😀' is not supported");
  EXPECT_EQ(told(std::string("a\nb\tc\0d\x1b[31m", 12)), "a\\nb\\x09c\\x00d\\x1b[31m");
  // Bytes alone, a character cut short, a longer form than need be, a surrogate, past the last.
  EXPECT_EQ(told("\xFF|\x80|\xE5\xAD"), "\\xff|\\x80|\\xe5\\xad");
  EXPECT_EQ(told("\xC0\x80|\xE0\x9F\xBF|\xED\xA0\x80|\xF4\x90\x80\x80"),
            "\\xc0\\x80|\\xe0\\x9f\\xbf|\\xed\\xa0\\x80|\\xf4\\x90\\x80\\x80");
}

TEST(ErrorTest, AMessageThatQuotesMuchKeepsItsEnds) {
  for (const std::string unit : {"x", "é", "字", "😀", "\xFF"}) {
    for (size_t shift = 0; shift < 4; ++shift) {
      std::string long_text(shift, '-');
      while (long_text.size() < 100'000) long_text += unit;
      const std::string message = told("stop '" + long_text + "' must be shorter");
      EXPECT_LT(message.size(), unit == "\xFF" ? 8100 : 2100);
      EXPECT_TRUE(message.starts_with("stop '")) << message;
      EXPECT_TRUE(message.ends_with("' must be shorter")) << message;
      EXPECT_NE(message.find("[...]"), message.npos);
      EXPECT_EQ(message.find("\\x"), unit == "\xFF" ? 6 + shift : message.npos) << message;
    }
  }
}

}  // namespace
}  // namespace quire
