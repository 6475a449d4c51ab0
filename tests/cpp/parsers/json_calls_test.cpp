#include <gtest/gtest.h>

#include "parsers/answers.h"

namespace quire {
namespace {

TEST(LlamaJsonTest, CallsAreJoinedBySemicolons) {
  const ChatDelta two = called({{"f", R"({"x": 1})"}, {"g", "{}"}});
  const std::string calls = R"({"name": "f", "parameters": {"x": 1}}; {"name": "g", "arguments": {}})";
  EXPECT_EQ(parse_every_way("", "llama3_json", calls), two);
  EXPECT_EQ(parse_every_way("", "llama4_json", "<|python_tag|>" + calls + "\n"), two);
  EXPECT_EQ(parse_every_way("", "llama3_json", R"( {"type": "function", "name": "f", "parameters": {}} )"),
            called({{"f", "{}"}}));
}

TEST(LlamaJsonTest, WhatJoinsCallsIsNoContent) {
  EXPECT_EQ(parse_every_way("", "llama3_json", "{\"name\": \"f\", \"parameters\": {}}; "),
            called({{"f", "{}"}}));
  EXPECT_EQ(parse_every_way("", "json", "[{\"name\": \"f\", \"parameters\": {}}, "), called({{"f", "{}"}}));
}

TEST(LlamaJsonTest, OtherObjectsAreContent) {
  for (const char* text : {
           R"({"answer": {"name": "f", "parameters": {}}})",
           R"({"name": "f", "surname": "g", "parameters": {}})",
           "int main() { return 0; }",
           "{}",
           "{{{{",
           "[{\"a\": 1}]; [1, 2]",
           "{\"name\": \"f\"}",
       })
    EXPECT_EQ(parse_every_way("", "llama3_json", text), said(text)) << text;
  EXPECT_EQ(parse_every_way("", "llama3_json", "I call {\"name\": \"f\", \"parameters\": {}}, then wait."),
            called({{"f", "{}"}}, "I call , then wait."));
}

TEST(JsonTest, AnArrayOfCallsIsRead) {
  EXPECT_EQ(parse_every_way("", "json",
                            R"([{"name": "f", "parameters": {"x": [{}]}}, {"name": "g", "arguments": {}}])"),
            called({{"f", R"({"x": [{}]})"}, {"g", "{}"}}));
  EXPECT_EQ(parse_every_way("", "json", R"({"name": "f", "parameters": {}})"), called({{"f", "{}"}}));
  EXPECT_EQ(parse_every_way("", "json", "[ [1], {\"name\": 2}]"), said("[ [1], {\"name\": 2}]"));
  EXPECT_EQ(parse_every_way("", "json", "[{\"name\": \"f\", \"parameters\": {}}, {\"name\": 2}]"),
            called({{"f", "{}"}}, ", {\"name\": 2}]"));
}

TEST(JsonArraysTest, EachModelHasItsMarker) {
  const std::string calls = R"([{"name": "f", "arguments": {"x": "]"}}, {"name": "g", "arguments": {}}])";
  const ChatDelta two = called({{"f", R"({"x": "]"})"}, {"g", "{}"}});
  EXPECT_EQ(parse_every_way("", "phi4_mini_json", "functools" + calls), two);
  EXPECT_EQ(parse_every_way("", "granite", "<|tool_call|> " + calls), two);
  EXPECT_EQ(parse_every_way("", "jamba", "<tool_calls>" + calls + "</tool_calls>"), two);
  EXPECT_EQ(parse_every_way("", "jamba", calls), said(calls));
  EXPECT_EQ(parse_every_way("", "phi4_mini_json", "the functools module"), said("the functools module"));
}

TEST(InternlmTest, ACallStandsBetweenItsMarkers) {
  EXPECT_EQ(
      parse_every_way("", "internlm",
                      "Ok.<|action_start|><|plugin|>\n{\"name\": \"f\", \"parameters\": {}}<|action_end|>\n"),
      called({{"f", "{}"}}, "Ok."));
}

TEST(MistralTest, BothFormsAreRead) {
  const ChatDelta two = called({{"f", R"({"x": 1})"}, {"g", "{}"}});
  EXPECT_EQ(parse_every_way(
                "", "mistral",
                R"([TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {}}])"),
            two);
  EXPECT_EQ(parse_every_way("", "mistral", R"([TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]g{})"), two);
  EXPECT_EQ(parse_every_way("", "mistral", "Hi [TOOL_CALLS] none"), said("Hi [TOOL_CALLS] none"));
  EXPECT_EQ(parse_every_way("", "mistral", "[TOOL_CALLS]"), said("[TOOL_CALLS]"));
  EXPECT_EQ(parse_every_way("", "mistral", R"([TOOL_CALLS]f{"x": "[TOOL_CALLS]"}[TOOL)"),
            called({{"f", R"({"x": "[TOOL_CALLS]"})"}}, "[TOOL"));
}

TEST(MistralTest, IdsHaveNineLettersAndDigits) {
  const auto format = ChatFormat::make("", "mistral");
  for (const char* text : {"[TOOL_CALLS]f{}", "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}]"}) {
    const ChatDelta answer = format->parse(text);
    ASSERT_EQ(answer.tool_calls.size(), 1u);
    EXPECT_EQ(answer.tool_calls[0].id.size(), 9u);
  }
  EXPECT_EQ(format->parse("[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{}").tool_calls.at(0).id, "abcdefghi");
}

}  // namespace
}  // namespace quire
