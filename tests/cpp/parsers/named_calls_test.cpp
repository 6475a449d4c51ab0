#include <gtest/gtest.h>

#include "parsers/answers.h"

namespace quire {
namespace {

TEST(DeepSeekTest, V3WritesArgumentsInAFence) {
  const auto call = [](const std::string& name, const std::string& arguments) {
    return "<｜tool▁call▁begin｜>function<｜tool▁sep｜>" + name + "\n```json\n" + arguments +
           "\n```<｜tool▁call▁end｜>";
  };
  EXPECT_EQ(parse_every_way("", "deepseek_v3",
                            "Ok <｜tool▁calls▁begin｜>" + call("f", "{\"a\": \"```\"}") + "\n" +
                                call("g", "{}") + "<｜tool▁calls▁end｜>"),
            called({{"f", "{\"a\": \"```\"}"}, {"g", "{}"}}, "Ok "));
  EXPECT_EQ(parse_every_way("", "deepseek_v3", "```json\n{}\n```"), said("```json\n{}\n```"));
}

TEST(DeepSeekTest, V31WritesThemAfterTheName) {
  EXPECT_EQ(parse_every_way("deepseek_v3", "deepseek_v31",
                            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"é\": "
                            "\"<｜tool▁call▁end｜>\"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{"
                            "}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
            called({{"f", "{\"é\": \"<｜tool▁call▁end｜>\"}"}, {"g", "{}"}}));
}

TEST(DeepSeekTest, WhatIsNoCallIsContent) {
  for (const char* text : {
           "<｜tool▁call▁begin｜>f",
           "<｜tool▁call▁begin｜>f<｜tool▁sep｜>",
           "<｜tool▁call▁begin｜>f<｜tool▁sep｜>[1]",
           "<｜tool▁call▁begin｜><｜tool▁sep｜>{}",
           "<｜tool",
           "<｜tool▁sep｜>",
       })
    EXPECT_EQ(parse_every_way("", "deepseek_v31", text), said(text)) << text;
  EXPECT_EQ(
      parse_every_way("", "deepseek_v31", "<｜tool▁call▁begin｜>f<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}"),
      called({{"g", "{}"}}, "<｜tool▁call▁begin｜>f"));
  const std::string long_name(5000, 'f');
  EXPECT_EQ(parse_every_way("", "deepseek_v31", "<｜tool▁call▁begin｜>" + long_name + "<｜tool▁sep｜>{}")
                .tool_calls.size(),
            0u);
}

TEST(KimiK2Test, TheHeadIsTheId) {
  const std::string text =
      "<|tool_calls_section_begin|><|tool_call_begin|>functions.f.g:0<|tool_call_argument_begin|>{\"x\": "
      "1}<|tool_call_end|><|tool_call_begin|>functions.h:1<|tool_call_argument_begin|>{}<|tool_call_end|><|"
      "tool_calls_"
      "section_end|>";
  EXPECT_EQ(parse_every_way("kimi_k2", "kimi_k2", "Hm." + text),
            called({{"f.g", "{\"x\": 1}"}, {"h", "{}"}}, "", "Hm."));
  EXPECT_EQ(ChatFormat::make("", "kimi_k2")->parse(text).tool_calls.at(1).id, "functions.h:1");
}

}  // namespace
}  // namespace quire
