#include <gtest/gtest.h>

#include "parsers/answers.h"

namespace quire {
namespace {

ChatDelta pythonic(const std::string& text) { return parse_every_way("", "pythonic", text); }

// The JSON of one value.
std::string python_value(const std::string& value) {
  const ChatDelta answer = pythonic("[f(x=" + value + ")]");
  EXPECT_EQ(answer.content, "") << value;
  return answer.tool_calls.empty() ? "" : answer.tool_calls[0].arguments;
}

TEST(PythonicTest, AListOfCallsIsRead) {
  EXPECT_EQ(pythonic("[f(x=1, y='a'), g.h()]"), called({{"f", R"({"x": 1, "y": "a"})"}, {"g.h", "{}"}}));
  EXPECT_EQ(pythonic(" [ f ( x = 1 , y = [ ] , ) , ] \n"), called({{"f", R"({"x": 1, "y": []})"}}));
  EXPECT_EQ(pythonic("[f()] Done."), called({{"f", "{}"}}, "Done."));
}

TEST(PythonicTest, LiteralsBecomeJson) {
  EXPECT_EQ(python_value("True"), R"({"x": true})");
  EXPECT_EQ(python_value("null"), R"({"x": null})");
  EXPECT_EQ(python_value("-1_000.50"), R"({"x": -1000.50})");
  EXPECT_EQ(python_value(".5e-3"), R"({"x": 0.5e-3})");
  EXPECT_EQ(python_value("1."), R"({"x": 1.0})");
  EXPECT_EQ(python_value("0xFF"), R"({"x": 255})");
  EXPECT_EQ(python_value("{'a': [None, {}], \"b\": 'c',}"), R"({"x": {"a": [null, {}], "b": "c"}})");
}

TEST(PythonicTest, StringsAreRead) {
  EXPECT_EQ(python_value(R"('it\'s "so"')"), R"({"x": "it's \"so\""})");
  EXPECT_EQ(python_value(R"("\n\t\x41\u00e9\101\0\d\\")"), R"({"x": "\n\tAéA\u0000\\d\\"})");
  EXPECT_EQ(python_value(R"('\U0001F98A\ud83d\ude00')"), R"({"x": "🦊\ud83d\ude00"})");
  EXPECT_EQ(python_value("''"), R"({"x": ""})");
  EXPECT_EQ(python_value("'''a 'b' ''c\n'''"), R"({"x": "a 'b' ''c\n"})");
  EXPECT_EQ(python_value("\"a)], g(\""), R"({"x": "a)], g("})");
}

TEST(PythonicTest, WhatIsNoCallIsContent) {
  for (const char* text : {
           "[1, 2]",
           "[f]",
           "[f(",
           "[f(1)]",
           "[]",
           "[see (1)]",
           "[f (x",
           "f(x=1)",
           "Look: [f(x=1)]",
           "[f.(x=1)]",
           "[2f(x=1)]",
           "[f g(x=1)]",
           "[",
       })
    EXPECT_EQ(pythonic(text), said(text)) << text;
}

TEST(PythonicTest, ACallThatBreaksOffKeepsTheArgumentsSoFar) {
  EXPECT_EQ(pythonic("[f(x=1, y=foo(2))]"), called({{"f", R"({"x": 1, "y": )"}}, "foo(2))]"));
  EXPECT_EQ(pythonic("[f(x=1, y"), called({{"f", R"({"x": 1)"}}));
  EXPECT_EQ(pythonic("[f(x=1"), called({{"f", R"({"x": )"}}));
  EXPECT_EQ(pythonic("[f(), g("), called({{"f", "{}"}}, ", g("));
  EXPECT_EQ(pythonic("[f(x='abc"), called({{"f", R"({"x": "abc)"}}));
  EXPECT_EQ(pythonic("[f(x=1, 2)]"), called({{"f", R"({"x": 1)"}}, ", 2)]"));
}

TEST(PythonicTest, NestingIsBounded) {
  const ChatDelta answer = ChatFormat::make("", "pythonic")->parse("[f(x=" + std::string(100'000, '['));
  // With the arguments themselves, as deep as JSON may be.
  EXPECT_EQ(answer.tool_calls.at(0).arguments, "{\"x\": " + std::string(199, '['));
}

TEST(Llama4PythonicTest, MarkersStandAroundTheList) {
  EXPECT_EQ(parse_every_way("", "llama4_pythonic", "<|python_start|>[f(x='<|python_end|>')]<|python_end|>"),
            called({{"f", R"({"x": "<|python_end|>"})"}}));
  EXPECT_EQ(parse_every_way("", "llama4_pythonic", "[f()]"), called({{"f", "{}"}}));
}

TEST(Lfm2Test, AListStandsBetweenMarkersInContent) {
  EXPECT_EQ(parse_every_way("", "lfm2", "[f()] <|tool_call_start|>[f(x=1), g()]<|tool_call_end|> Bye [f()]"),
            called({{"f", R"({"x": 1})"}, {"g", "{}"}}, "[f()] Bye [f()]"));
}

TEST(Olmo3Test, EachLineIsACall) {
  EXPECT_EQ(parse_every_way("", "olmo3", "Ok.<function_calls>\nf(x=1,\n y=[2])\ng()\n</function_calls> Bye"),
            called({{"f", R"({"x": 1, "y": [2]})"}, {"g", "{}"}}, "Ok.Bye"));
  EXPECT_EQ(parse_every_way("", "olmo3", "<function_calls>\n[f()]"), said("<function_calls>\n[f()]"));
  EXPECT_EQ(parse_every_way("", "olmo3", "<function_calls>f(), g()"), called({{"f", "{}"}}, ", g()"));
}

}  // namespace
}  // namespace quire
