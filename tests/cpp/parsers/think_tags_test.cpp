#include <gtest/gtest.h>

#include "parsers/answers.h"

namespace quire {
namespace {

TEST(ThinkTagsTest, WhatComesBeforeTheEndIsReasoning) {
  EXPECT_EQ(parse_every_way("deepseek_r1", "", "<think>\nHm. </thin\n</think>\n\nYes."),
            said("\n\nYes.", "\nHm. </thin\n"));
  EXPECT_EQ(parse_every_way("deepseek_r1", "", "Hm.</think>Yes. </think> <think>"),
            said("Yes. </think> <think>", "Hm."));
  EXPECT_EQ(parse_every_way("deepseek_r1", "", "It goes on and on </th"), said("", "It goes on and on </th"));
}

TEST(ThinkTagsTest, WithoutThinkingTheAnswerIsContent) {
  ChatParserOptions options;
  options.enable_thinking = false;
  EXPECT_EQ(parse_every_way("qwen3", "", "\n Yes.", options), said("\n Yes."));
  // But the model may think all the same.
  EXPECT_EQ(parse_every_way("qwen3", "", "\n<think>Hm.</think>Yes.", options), said("Yes.", "Hm."));
  EXPECT_EQ(parse_every_way("qwen3", "", "</think>Yes.", options), said("Yes."));
}

TEST(ThinkTagsTest, SomeModelsWriteOthers) {
  EXPECT_EQ(parse_every_way("mistral", "", "[THINK]Hm.[/THINK]Yes."), said("Yes.", "Hm."));
  EXPECT_EQ(parse_every_way("mistral", "", " Yes. [THINK]"), said(" Yes. [THINK]"));
  EXPECT_EQ(parse_every_way("granite", "", "Here is my thought process: Hm. Here's my response: Yes."),
            said(" Yes.", " Hm. "));
  EXPECT_EQ(parse_every_way("glm45", "", "\n Hm. \n\n</think>\nYes."), said("\nYes.", "\n Hm."));
  EXPECT_EQ(parse_every_way("glm45", "", "Hm. \n a \n"), said("", "Hm. \n a"));
}

TEST(ThinkTagsTest, CallsComeAfterReasoning) {
  const std::string call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
  EXPECT_EQ(parse_every_way("qwen3", "hermes", "<think>Hm.</think>\n\n" + call),
            called({{"f", "{}"}}, "", "Hm."));
  // In the reasoning they are not called, but in Qwen's they end it.
  EXPECT_EQ(parse_every_way("deepseek_r1", "hermes", "Hm. " + call + "</think>Yes."),
            said("Yes.", "Hm. " + call));
  EXPECT_EQ(parse_every_way("qwen3", "hermes", "Hm. " + call), called({{"f", "{}"}}, "", "Hm. "));
}

TEST(ThinkTagsTest, CallsAreContentWhereTheyAreNotParsed) {
  ChatParserOptions options;
  options.parse_tool_calls = false;
  const std::string call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
  EXPECT_EQ(parse_every_way("qwen3", "hermes", "Hm. " + call + "</think>" + call, options),
            said(call, "Hm. " + call));
}

}  // namespace
}  // namespace quire
