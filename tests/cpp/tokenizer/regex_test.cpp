#include "tokenizer/regex.h"

#include <gtest/gtest.h>

#include "quire/error.h"
#include "util/error_of.h"
#include "util/sanitized.h"

namespace quire::text {
namespace {

// The matches that follow one another, with "|" between them.
std::string matches(std::string_view pattern, std::string_view text) {
  const Regex regex(pattern);
  RegexScratch scratch;
  scratch.start_text(text);
  std::string found;
  Regex::Match match{};
  for (size_t from = 0; from < text.size() && regex.find(text, from, scratch, match); from = match.end) {
    if (match.end == match.begin) break;
    if (!found.empty()) found += '|';
    found += text.substr(match.begin, match.end - match.begin);
  }
  return found;
}

std::string pattern_refusal(std::string_view pattern) {
  return error_of([&] { const Regex regex(pattern); });
}

TEST(RegexTest, AlternativesAreTriedInOrderAndTheFirstThatWorksWins) {
  EXPECT_EQ(matches("a|ab|abc", "abcab"), "a|a");
  EXPECT_EQ(matches("(?:a|ab)c", "abc"), "abc");
}

TEST(RegexTest, QuantifiersAreGreedyUnlessTheySayOtherwise) {
  EXPECT_EQ(matches("a{1,2}", "aaaaa"), "aa|aa|a");
  EXPECT_EQ(matches("<.+>", "<a><b>"), "<a><b>");
  EXPECT_EQ(matches("<.+?>", "<a><b>"), "<a>|<b>");
  EXPECT_EQ(matches("a++a", "aaa"), "");
  EXPECT_EQ(matches("(?>a|ab)c", "abc"), "");
  EXPECT_EQ(matches("(?:ab){2,}", "abababx"), "ababab");
}

TEST(RegexTest, AGreedyRunGivesBackWholeCharacters) { EXPECT_EQ(matches("字+字", "字字字a"), "字字字"); }

TEST(RegexTest, LookaheadConsumesNothing) {
  EXPECT_EQ(matches(R"(\s+(?!\S)|\s+|x)", "   x  "), "  | |x|  ");
  EXPECT_EQ(matches("a(?=b)", "aab"), "a");
}

TEST(RegexTest, ClassesTakePropertiesRangesAndEscapes) {
  EXPECT_EQ(matches(R"(\p{Lu}\p{Ll}*)", "FooBarÉté9"), "Foo|Bar|Été");
  EXPECT_EQ(matches(R"([^\r\n\p{L}\p{N}]?\p{L}+)", "hi there\nyou"), "hi| there|you");
  EXPECT_EQ(matches(R"([a-c\-\]]+)", "ab-]d"), "ab-]");
  EXPECT_EQ(matches(R"([[a-c]x]+)", "axbd"), "axb");
  EXPECT_EQ(matches(R"(\P{L}+)", "ab12cd"), "12");
}

TEST(RegexTest, IgnoringCaseFollowsUnicode) {
  EXPECT_EQ(matches("(?i:'s|'ll)", "'S'lL'ſ"), "'S|'lL|'ſ");
  EXPECT_EQ(matches("(?i:k)k", "Kk\u212Ak"), "Kk|\u212Ak");
}

TEST(RegexTest, AnchorsAreThoseOfLines) {
  EXPECT_EQ(matches("^a", "ab\nab"), "a|a");
  EXPECT_EQ(matches("b$", "ab\nab"), "b|b");
  EXPECT_EQ(matches(R"(b\z)", "ab\nab"), "b");
  EXPECT_EQ(matches(R"(\bb)", "ab b"), "b");
}

TEST(RegexTest, WhatIsNotSupportedIsRefusedWithItsPosition) {
  EXPECT_EQ(pattern_refusal("ab(?<=x)"), "regular expression: a lookbehind at position 2 is not supported");
  EXPECT_EQ(pattern_refusal(R"((a)\1)"),
            "regular expression: the escape '\\1' at position 3 is not supported");
  EXPECT_EQ(pattern_refusal(R"(\p{Han})"),
            "regular expression: the property 'Han' at position 0 is not supported");
  EXPECT_EQ(pattern_refusal("[a&&b]"),
            "regular expression: '&&' in a character class at position 2 is not supported");
  EXPECT_EQ(pattern_refusal("(a*)*"),
            "regular expression: repeating a group that can match nothing at position 0 is not supported");
  EXPECT_NE(pattern_refusal("(?i:ss)"), "");  // would also be "ß"
  EXPECT_NE(pattern_refusal(std::string(200, '(') + std::string(200, ')')), "");
}

TEST(RegexTest, AMillionLettersNeedNoStack) {
  const std::string text(1'000'000, 'a');
  EXPECT_EQ(matches(R"(\p{L}+)", text), text);
  EXPECT_EQ(matches("(?:a|b)+", text), text);
}

TEST(RegexTest, ASearchThatExplodesIsGivenUp) {
  EXPECT_THROW(matches("(?:a+)+b", std::string(60, 'a')), InvalidArgument);
  if (kSanitized) return;  // as many steps as a search may take, each time
  EXPECT_THROW(matches(R"(\s+$)", std::string(300'000, ' ') + "x"), InvalidArgument);
  EXPECT_THROW(matches("(?:a{1000}){1000}", std::string(300'000, 'a')), InvalidArgument);
}

}  // namespace
}  // namespace quire::text
