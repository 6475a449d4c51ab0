#include "tokenizer/unicode.h"

#include <gtest/gtest.h>

#include "tokenizer/unicode_normalization.h"
#include "tokenizer/utf8_stream.h"

namespace quire {
namespace {

using unicode::CodePointBitmap;
using unicode::CodePointSet;
using unicode::NormalizationForm;

TEST(UnicodeTest, SetsMergeRangesThatTouch) {
  const CodePointRange ranges[] = {{20, 30}, {1, 5}, {6, 10}, {25, 40}};
  const CodePointSet set(ranges);
  ASSERT_EQ(set.ranges().size(), 2u);
  EXPECT_TRUE(set.contains(1) && set.contains(10) && set.contains(40));
  EXPECT_FALSE(set.contains(0) || set.contains(11) || set.contains(41));
  EXPECT_EQ(set.complement().complement().ranges().size(), 2u);
}

TEST(UnicodeTest, ABitmapHasTheMembersOfItsSet) {
  CodePointSet letters;
  ASSERT_TRUE(CodePointSet::from_category_name("L", letters));
  const CodePointBitmap bitmap(letters);
  for (char32_t c = 0; c <= unicode::kMaxCodePoint; ++c)
    ASSERT_EQ(bitmap.contains(c), letters.contains(c)) << uint32_t{c};
}

TEST(UnicodeTest, ABitmapHasWhatBeginsOrEndsAnywhere) {
  const std::vector<std::vector<CodePointRange>> sets = {
      {},
      {{0, unicode::kMaxCodePoint}},
      {{0, 0},
       {63, 64},
       {127, 128},
       {191, 192},
       {255, 256},
       {unicode::kMaxCodePoint, unicode::kMaxCodePoint}},
      {{256, 511}, {768, 1023}},
      {{255, 511}, {513, 2000}, {2002, 2047}, {2049, 2049}},
      {{100, 0x10FF00}},
      {{0x10FF00, unicode::kMaxCodePoint}},
      {{300, 0x7FFFFFFF}},
      {{unicode::kMaxCodePoint + 1, 0x7FFFFFFF}}};
  for (const std::vector<CodePointRange>& ranges : sets) {
    const CodePointSet set(ranges);
    const CodePointBitmap bitmap(set);
    const auto expect_same = [&](char32_t c) {
      ASSERT_EQ(bitmap.contains(c), set.contains(c)) << uint32_t{c} << " of set " << &ranges - sets.data();
    };
    for (char32_t c = 0; c < 3000; ++c) expect_same(c);
    for (char32_t c = 3000; c < unicode::kMaxCodePoint; c += 61) expect_same(c);
    for (char32_t c = 0x10FE00; c <= unicode::kMaxCodePoint; ++c) expect_same(c);
  }
}

TEST(NormalizationTest, ComposesAndDecomposes) {
  EXPECT_EQ(unicode::normalize("e\u0301", NormalizationForm::kNfc), "é");
  EXPECT_EQ(unicode::normalize("é", NormalizationForm::kNfd), "e\u0301");
  EXPECT_EQ(unicode::normalize("ﬁ²", NormalizationForm::kNfkc), "fi2");
  EXPECT_EQ(unicode::normalize("\u1112\u1161\u11AB", NormalizationForm::kNfc), "한");
  EXPECT_EQ(unicode::normalize("q\u0307\u0323", NormalizationForm::kNfc),
            "q\u0323\u0307");  // marks are sorted
}

TEST(NormalizationTest, PlainTextIsKnownToBeNormalized) {
  EXPECT_TRUE(unicode::is_surely_normalized("naïve 字 한", NormalizationForm::kNfc));
  EXPECT_FALSE(unicode::is_surely_normalized("e\u0301", NormalizationForm::kNfc));
}

std::string streamed(std::initializer_list<std::string_view> pieces, std::string& after_each) {
  text::Utf8Stream stream;
  std::string out;
  for (std::string_view piece : pieces) {
    stream.append(piece, out);
    after_each += out + "/";
  }
  stream.finish(out);
  return out;
}

TEST(Utf8StreamTest, ACharacterIsHeldBackUntilItIsWhole) {
  std::string after_each;
  EXPECT_EQ(streamed({"a\xE5", "\xAD", "\x97z"}, after_each), "a字z");
  EXPECT_EQ(after_each, "a/a/a字z/");
}

TEST(Utf8StreamTest, WhatCannotBeCompletedBecomesOneReplacement) {
  std::string after_each;
  EXPECT_EQ(streamed({"\xE5\xAD", "x"}, after_each), "\uFFFDx");
  EXPECT_EQ(streamed({"\xF0\x9F\x91"}, after_each), "\uFFFD");
  EXPECT_EQ(streamed({"\x80\xFF"}, after_each), "\uFFFD\uFFFD");
  EXPECT_EQ(streamed({"\xED\xA0\x80"}, after_each), "\uFFFD\uFFFD\uFFFD");
}

}  // namespace
}  // namespace quire
