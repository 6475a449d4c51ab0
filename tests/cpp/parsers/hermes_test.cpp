#include <gtest/gtest.h>

#include "parsers/answers.h"

namespace quire {
namespace {

ChatDelta hermes(const std::string& text) { return parse_every_way("", "hermes", text); }

TEST(HermesTest, ACallIsReadFromItsTags) {
  const ChatDelta answer = hermes(
      "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Graz\", \"days\": "
      "2}}\n</tool_call>");
  EXPECT_EQ(answer, called({{"get_weather", R"({"city": "Graz", "days": 2})"}}));
}

TEST(HermesTest, CallsStandBetweenContent) {
  const ChatDelta answer = hermes(
      "Let me see. <tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n<tool_call>{\"name\": \"g\", "
      "\"arguments\": {\"x\": [1, {\"y\": null}]}}</tool_call>\nThat is all.\n");
  EXPECT_EQ(answer, called({{"f", "{}"}, {"g", R"({"x": [1, {"y": null}]})"}}, "Let me see. That is all.\n"));
}

TEST(HermesTest, AnAnswerWithoutCallsIsAsItIs) {
  EXPECT_EQ(hermes("\n\n a < b <tool> <tool_cal\n").content, "\n\n a < b <tool> <tool_cal\n");
  EXPECT_EQ(hermes("").content, "");
  EXPECT_EQ(hermes(" \n").content, " \n");
}

TEST(HermesTest, WhiteSpaceBeforeACallIsNoContent) {
  EXPECT_EQ(hermes("\n\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n\n"),
            called({{"f", "{}"}}));
}

TEST(HermesTest, MarkersAndBracesWithinStringsAreText) {
  const std::string arguments = R"({"a": "</tool_call> } \" <tool_call> \\", "b}": "{\u00e9 é 🦊"})";
  EXPECT_EQ(hermes("<tool_call>{\"name\": \"f\", \"arguments\": " + arguments + "}</tool_call>"),
            called({{"f", arguments}}));
}

TEST(HermesTest, MembersComeInAnyOrder) {
  EXPECT_EQ(
      hermes(
          R"(<tool_call>{"id": {"x": ["name"]}, "arguments": {"a": {"name": "no"}}, "name": "\u0066é"}</tool_call>)"),
      called({{"fé", R"({"a": {"name": "no"}})"}}));
}

TEST(HermesTest, ArgumentsMayBeAStringThatHoldsThem) {
  const auto arguments = [](const std::string& written) {
    return "<tool_call>{\"name\": \"f\", \"arguments\": " + written + "}</tool_call>";
  };
  EXPECT_EQ(hermes(arguments(R"(" {\"a\": \"\u00e9\ud83d\ude00 \\\" }\" }\n", "x": 1)")),
            called({{"f", R"({"a": "é😀 \" }" })"}}));
  EXPECT_EQ(hermes(arguments(R"("{\"a\": [1}")")), called({{"f", R"({"a": [1)"}}, "}\"}"));
  EXPECT_EQ(hermes(arguments(R"("{} x")")), called({{"f", "{}"}}, "x\"}"));
  EXPECT_EQ(hermes(arguments(R"("{")")), called({{"f", "{"}}, "\"}"));
  EXPECT_EQ(hermes(arguments(R"("{\"a\": \"\ud83d\ud83dx\"}")")),
            called({{"f", "{\"a\": \"\uFFFD\uFFFDx\"}"}}));
}

TEST(HermesTest, ControlCharactersInStringsAreEscaped) {
  EXPECT_EQ(hermes("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"x\ny\"}}</tool_call>"),
            called({{"f", R"({"a": "x\ny"})"}}));
  EXPECT_EQ(hermes("<tool_call>{\"arguments\": {\"a\": \"x\ty\"}, \"name\": \"f\"}</tool_call>"),
            called({{"f", R"({"a": "x\ty"})"}}));
}

TEST(HermesTest, WhatIsNoCallIsContent) {
  for (const char* text : {
           "<tool_call>",
           "<tool_call>\n",
           "<tool_call>sorry",
           "<tool_call>{\"name\": \"f\"",
           "<tool_call>{\"name\": \"f\", \"arguments\": 3}",
           "<tool_call>{\"name\": \"f\", \"arguments\": \"[]\"}",
           "<tool_call>{\"name\": \"f\", \"arguments\": \"\"}",
           "<tool_call>{\"arguments\": \"{}\", \"name\": \"f\"}",
           "<tool_call>{\"name\": \"\", \"arguments\": {}}",
           "<tool_call>{\"name\": 3, \"arguments\": {}}",
           "<tool_call>{\"arguments\": {}}",
           "<tool_call>{\"arguments\": {\"name\": \"f\"}",
           "<tool_call>{\"name\": \"f\\x\", \"arguments\": {}}",
       }) {
    EXPECT_EQ(hermes(text), said(text)) << text;
  }
  const std::string with_end = "a <tool_call>{\"name\": \"f\"}</tool_call> b</tool_call>";
  EXPECT_EQ(hermes(with_end), said(with_end));
}

TEST(HermesTest, AfterACallThatIsNoneTheNextIsRead) {
  EXPECT_EQ(hermes("<tool_call>{\"name\": <tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>"),
            called({{"f", "{}"}}, "<tool_call>{\"name\": "));
}

TEST(HermesTest, ACallThatBreaksOffKeepsTheArgumentsSoFar) {
  EXPECT_EQ(hermes("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": tr"), called({{"f", "{\"a\": tr"}}));
  EXPECT_EQ(hermes("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": tr}}</tool_call>"),
            called({{"f", "{\"a\": tr"}}, "}}"));
  // Its braces may be too few or too many.
  EXPECT_EQ(hermes("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}</tool_call>"),
            called({{"f", "{\"a\": 1}"}}));
  EXPECT_EQ(hermes("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}}</tool_call>"),
            called({{"f", "{\"a\": 1}"}}, "}"));
}

TEST(HermesTest, NestingIsBounded) {
  const std::string deep(100'000, '[');
  const ChatDelta answer =
      ChatFormat::make("", "hermes")->parse("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": " + deep);
  ASSERT_EQ(answer.tool_calls.size(), 1u);
  EXPECT_LT(answer.tool_calls[0].arguments.size(), 300u);
  EXPECT_GT(answer.content.size(), 99'000u);
}

TEST(HermesTest, WhatIsHeldBackIsBounded) {
  const std::string many(3'000'000, 'x');
  EXPECT_EQ(ChatFormat::make("", "hermes")->parse("<tool_call>{\"x\": \"" + many).content.size(),
            many.size() + 18);
}

TEST(Granite20bTest, HasNoMarkerAtTheEnd) {
  EXPECT_EQ(
      parse_every_way("", "granite-20b-fc",
                      "<function_call> {\"name\": \"f\", \"arguments\": {}} <function_call>{\"name\": \"g\", "
                      "\"arguments\": {}}"),
      called({{"f", "{}"}, {"g", "{}"}}));
}

TEST(LongcatTest, HasMarkersOfItsOwn) {
  EXPECT_EQ(parse_every_way("", "longcat",
                            "<longcat_tool_call>{\"name\": \"f\", \"arguments\": {}}</longcat_tool_call>"),
            called({{"f", "{}"}}));
}

}  // namespace
}  // namespace quire
