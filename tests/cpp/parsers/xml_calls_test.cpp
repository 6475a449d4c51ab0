#include <gtest/gtest.h>

#include "parsers/answers.h"

namespace quire {
namespace {

const char kTypedTools[] = R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
    "properties": {"s": {"type": "string"}, "i": {"type": "integer"}, "n": {"type": "number"},
                   "b": {"type": "boolean"}, "a": {"type": "array"}, "o": {"type": ["object", "null"]},
                   "u": {"anyOf": [{"type": "integer"}, {"type": "string"}]}, "e": {"enum": ["x", "1"]}}}}}])";

ChatDelta parse_typed(const std::string& tool_parser, const std::string& text) {
  ChatParserOptions options;
  options.tools_json = kTypedTools;
  return parse_every_way("", tool_parser, text, options);
}

// One argument of the function f, between Qwen's tags.
std::string typed_argument(const std::string& key, const std::string& value) {
  const ChatDelta answer =
      parse_typed("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=" + key + ">\n" + value +
                                     "\n</parameter>\n</function>\n</tool_call>");
  EXPECT_EQ(answer.content, "");
  EXPECT_EQ(answer.tool_calls.size(), 1u);
  return answer.tool_calls.empty() ? "" : answer.tool_calls[0].arguments;
}

TEST(Qwen3XmlTest, ArgumentsAreTypedByTheSchema) {
  EXPECT_EQ(typed_argument("s", "12"), R"({"s": "12"})");
  EXPECT_EQ(typed_argument("i", "12"), R"({"i": 12})");
  EXPECT_EQ(typed_argument("i", "-12345678901234567890"), R"({"i": -12345678901234567890})");
  EXPECT_EQ(typed_argument("i", "twelve"), R"({"i": "twelve"})");
  EXPECT_EQ(typed_argument("n", "1.50"), R"({"n": 1.5})");
  EXPECT_EQ(typed_argument("n", "2.0"), R"({"n": 2})");
  EXPECT_EQ(typed_argument("n", "1e999"), R"({"n": "1e999"})");
  EXPECT_EQ(typed_argument("b", "True"), R"({"b": true})");
  EXPECT_EQ(typed_argument("a", "[1, {\"x\": \"</function\"}]"), R"({"a": [1, {"x": "</function"}]})");
  EXPECT_EQ(typed_argument("o", "null"), R"({"o": null})");
  EXPECT_EQ(typed_argument("u", "7"), R"({"u": 7})");
  EXPECT_EQ(typed_argument("u", "seven"), R"({"u": "seven"})");
  EXPECT_EQ(typed_argument("e", "1"), R"({"e": "1"})");
  EXPECT_EQ(typed_argument("e", "\n x "), R"({"e": "x"})") << "which is listed";
  EXPECT_EQ(typed_argument("e", " y "), R"({"e": " y "})");
  EXPECT_EQ(typed_argument("unknown", "1"), R"({"unknown": "1"})");
}

TEST(Qwen3XmlTest, StringsKeepTheirLinesAndAreEscaped) {
  EXPECT_EQ(typed_argument("s", "\n a <b> \"c\"\\\t é\n\n"),
            "{\"s\": \"\\n a <b> \\\"c\\\"\\\\\\t é\\n\\n\"}");
  EXPECT_EQ(typed_argument("s", ""), R"({"s": ""})");
  EXPECT_EQ(typed_argument("s", "<tool_call> </tool_call>"), R"({"s": "<tool_call> </tool_call>"})");
}

TEST(Qwen3XmlTest, CallsStandInContent) {
  EXPECT_EQ(
      parse_typed(
          "qwen3_xml",
          "Ok.\n<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n<parameter=i>\n3\n</"
          "parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>"),
      called({{"f", R"({"s": "x", "i": 3})"}, {"g", "{}"}}, "Ok.\n"));
  // Without tags around it, and without some that end things.
  EXPECT_EQ(parse_typed("qwen3_xml", "<function=f><parameter=s>x<parameter=i>3</function> Bye </function>"),
            called({{"f", R"({"s": "x", "i": 3})"}}, "Bye </function>"));
}

TEST(Qwen3XmlTest, WhatIsNoCallIsContent) {
  for (const char* text : {
           "<tool_call>",
           "<tool_call>\n{\"name\": \"f\"}",
           "<tool_call><function=",
           "<tool_call><function=f",
           "<tool_call><function=>x",
           "<function=a b>",
           "<parameter=x>1</parameter>",
           "a > b",
       })
    EXPECT_EQ(parse_typed("qwen3_coder", text), said(text)) << text;
  EXPECT_EQ(parse_typed("qwen3_coder", "<function=f> text </function>"),
            called({{"f", "{"}}, "text </function>"));
  EXPECT_EQ(parse_typed("qwen3_coder", "<function=f><parameter=s <tool_call>x"),
            called({{"f", "{"}}, "<parameter=s <tool_call>x"));
  EXPECT_EQ(parse_typed("qwen3_coder", "<function=f><parameter=s"), called({{"f", "{"}}));
  EXPECT_EQ(parse_typed("qwen3_coder", "<function=f><parameter=s>abc"), called({{"f", "{\"s\": \"abc"}}));
}

TEST(SeedOssTest, HasTagsOfItsOwn) {
  EXPECT_EQ(parse_typed(
                "seed_oss",
                "<seed:tool_call>\n<function=f>\n<parameter=i>4</parameter>\n</function>\n</seed:tool_call>"),
            called({{"f", R"({"i": 4})"}}));
}

TEST(GlmTest, KeysAndValuesHaveTags) {
  EXPECT_EQ(
      parse_typed(
          "glm45",
          "Ok.\n<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>x > y</arg_value>\n<arg_key>i</arg_key>\n"
          "<arg_value>4</arg_value>\n</tool_call>\n<tool_call>g</tool_call>"),
      called({{"f", R"({"s": "x > y", "i": 4})"}, {"g", "{}"}}, "Ok.\n"));
  EXPECT_EQ(parse_typed("glm47", "<tool_call>f<arg_key>i</arg_key><arg_value>4</arg_value></tool_call>"),
            called({{"f", R"({"i": 4})"}}));
}

TEST(InvokesTest, SeveralStandInOneBlock) {
  EXPECT_EQ(
      parse_typed(
          "minimax_m2",
          "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"i\">4</parameter>\n</invoke>\n<invoke "
          "name=\"g\">\n</invoke>\n</minimax:tool_call>"),
      called({{"f", R"({"i": 4})"}, {"g", "{}"}}));
  EXPECT_EQ(parse_typed("minimax_m2", "<invoke name=\"f\">"), said("<invoke name=\"f\">"));
}

TEST(InvokesTest, DeepSeekSaysWhatIsAString) {
  const std::string parameter = "<｜DSML｜parameter name=";
  EXPECT_EQ(
      parse_typed("deepseek_v32", "\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n" + parameter +
                                      "\"s\" string=\"true\">1</｜DSML｜parameter>\n" + parameter +
                                      "\"x\" string=\"false\">[1]</｜DSML｜parameter>\n</｜DSML｜invoke>\n</"
                                      "｜DSML｜function_calls>"),
      called({{"f", R"({"s": "1", "x": [1]})"}}));
}

}  // namespace
}  // namespace quire
