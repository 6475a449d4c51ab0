#include "util/utf8.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace quire {
namespace {

TEST(Utf8Test, TheFirstInvalidByteIsFound) {
  EXPECT_EQ(find_invalid_utf8("plain ASCII, é, 字 and 👍"), std::string_view::npos);
  EXPECT_EQ(find_invalid_utf8("12345678\xFF"), 8u);
  EXPECT_EQ(find_invalid_utf8("a\xC0\x80"), 1u);      // overlong
  EXPECT_EQ(find_invalid_utf8("a\xED\xA0\x80"), 1u);  // a surrogate
  EXPECT_EQ(find_invalid_utf8("a\xE5\xAD"), 1u);      // cut short
}

TEST(Utf8Test, EveryCharacterIsReadAsItWasWritten) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text = "a";
    append_utf8(c, text);
    ASSERT_EQ(find_invalid_utf8(text), std::string_view::npos) << uint32_t{c};
    ASSERT_EQ(previous_utf8(text, text.size()), 1U) << uint32_t{c};
    size_t pos = 1;
    ASSERT_EQ(decode_utf8(text, pos), c);
    ASSERT_EQ(pos, text.size());
  }
}

}  // namespace
}  // namespace quire
