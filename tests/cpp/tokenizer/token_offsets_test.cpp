#include "tokenizer/token_offsets.h"

#include <gtest/gtest.h>

#include "quire/error.h"
#include "tokenizer/hf_tokenizer.h"
#include "tokenizer/rewriter.h"
#include "tokenizer/unicode_normalization.h"
#include "util/str.h"

namespace quire::text {
namespace {

using Spans = std::vector<TextSpan>;

// One token for each of some characters, and for any other "?".
HfTokenizer characters(const std::string& sections) {
  return HfTokenizer(
      str(R"({"model": {"type": "WordLevel", "vocab": {"?": 0, "a": 1, "b": 2, "é": 3}, "unk_token": "?"},
              "pre_tokenizer": {"type": "FixedLength", "length": 1})",
          sections, "}"),
      "tokenizer.json");
}

Spans offsets_of(const std::string& normalizer, std::string_view text) {
  return characters(R"(, "normalizer": )" + normalizer).encode_with_offsets(text, true).offsets;
}

TEST(TokenOffsetsTest, AreBytesOfTheText) {
  const Encoding encoding = characters("").encode_with_offsets("aéb", true);
  EXPECT_EQ(encoding.ids, (std::vector<int32_t>{1, 3, 2}));
  EXPECT_EQ(encoding.offsets, (Spans{{0, 1}, {1, 3}, {3, 4}}));
  EXPECT_EQ(characters("").encode_with_offsets("", true).offsets, Spans{});
}

TEST(TokenOffsetsTest, AreCountedInCodePoints) {
  Spans spans = {{0, 0}, {0, 1}, {1, 3}, {1, 3}, {3, 7}, {0, 7}, {0, 0}};
  count_code_points("aé\U0001F680", spans);
  EXPECT_EQ(spans, (Spans{{0, 0}, {0, 1}, {1, 2}, {1, 2}, {2, 3}, {0, 3}, {0, 0}}));
}

TEST(TokenOffsetsTest, LeadBackThroughTheNormalizer) {
  // "a\u0301" is composed, and stands for its first character; "ﬁ" becomes two, of one part each.
  EXPECT_EQ(offsets_of(R"({"type": "NFKC"})", "a\u0301\uFB01b"), (Spans{{0, 1}, {3, 6}, {3, 6}, {6, 7}}));
  EXPECT_EQ(offsets_of(R"({"type": "Strip", "strip_left": true, "strip_right": true})", " a "),
            (Spans{{1, 2}}));
  EXPECT_EQ(offsets_of(R"({"type": "Prepend", "prepend": "_"})", "éb"), (Spans{{0, 2}, {0, 2}, {2, 3}}));
  EXPECT_EQ(
      offsets_of(R"({"type": "Sequence", "normalizers": [{"type": "Lowercase"}, {"type": "StripAccents"},
                           {"type": "Replace", "pattern": {"String": "ab"}, "content": "é"}]})",
                 "xA\u0301Bb"),
      (Spans{{0, 1}, {4, 5}, {5, 6}}));
}

TEST(TokenOffsetsTest, BytesOfOneCharacterHaveThePartOfAll) {
  const HfTokenizer tokenizer(R"({"model": {"type": "BPE", "vocab": {"<unk>": 0, "<0xC3>": 1, "<0xA9>": 2,
      "a": 3, "b": 4, "ab": 5}, "merges": ["a b"], "byte_fallback": true, "unk_token": "<unk>"}})",
                              "tokenizer.json");
  const Encoding encoding = tokenizer.encode_with_offsets("abéxab", true);
  EXPECT_EQ(encoding.ids, (std::vector<int32_t>{5, 1, 2, 0, 5}));
  EXPECT_EQ(encoding.offsets, (Spans{{0, 2}, {2, 4}, {2, 4}, {4, 5}, {5, 7}}));
}

TEST(TokenOffsetsTest, WhatIsDroppedIsInNoPart) {
  const HfTokenizer tokenizer(
      R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})",
      "tokenizer.json");
  EXPECT_EQ(tokenizer.encode_with_offsets("axabé", true).offsets, (Spans{{0, 1}, {2, 4}}));
}

TEST(TokenOffsetsTest, AddedTokensHaveTheSpacesThatTheyTakeAndThoseInNoTextNone) {
  const HfTokenizer tokenizer = characters(R"(, "added_tokens": [{"id": 4, "content": "<x>", "lstrip": true,
      "rstrip": true, "single_word": false, "normalized": false, "special": true}],
      "post_processor": {"type": "BertProcessing", "cls": ["a", 1], "sep": ["b", 2]})");
  EXPECT_EQ(tokenizer.encode_with_offsets("a <x>  b", true).offsets,
            (Spans{{0, 0}, {0, 1}, {1, 7}, {7, 8}, {0, 0}}));
  EXPECT_EQ(tokenizer.encode_with_offsets("a <x>  b", false).offsets, (Spans{{0, 1}, {1, 7}, {7, 8}}));
}

TEST(TokenOffsetsTest, ATemplateWithoutTheTextHasNoPartOfIt) {
  const HfTokenizer tokenizer = characters(R"(, "post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "x"}}], "special_tokens": {"x": {"ids": [1, 2]}}})");
  const Encoding encoding = tokenizer.encode_with_offsets("aaa", true);
  EXPECT_EQ(encoding.ids, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(encoding.offsets, (Spans{{0, 0}, {0, 0}}));
}

TEST(TokenOffsetsTest, InvalidTextIsRefused) {
  EXPECT_THROW(characters("").encode_with_offsets("a\xC3", true), InvalidArgument);
}

TEST(AlignmentTest, APartOfATextThatWasWrittenAnewKeepsItsOwn) {
  Alignment whole, part;
  whole.start("aéb", 10);
  Rewriter out("aéb", &whole, 8);
  out.copy(0, 3);
  out.put("xy", 1, 3);
  out.put("zw", 3, 4);
  out.cut(6);
  EXPECT_EQ(out.finish(), "aéxyz");
  part.start_part(whole, 3, 6);  // "xyz"
  EXPECT_EQ(part.span(0, 1), (TextSpan{11, 13}));
  EXPECT_EQ(part.span(1, 3), (TextSpan{11, 14}));
  EXPECT_EQ(part.span(0, 0), (TextSpan{11, 11}));
}

}  // namespace
}  // namespace quire::text
