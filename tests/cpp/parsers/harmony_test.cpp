#include <gtest/gtest.h>

#include "parsers/answers.h"
#include "quire/error.h"

namespace quire {
namespace {

ChatDelta harmony(const std::string& text) { return parse_every_way("openai_gptoss", "openai", text); }

TEST(HarmonyTest, ChannelsAreReasoningAndContent) {
  EXPECT_EQ(harmony("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>"
                    "Yes.<|return|>"),
            said("Yes.", "Hm."));
  EXPECT_EQ(harmony("<|channel|>final<|message|>Yes, it "), said("Yes, it "));
}

TEST(HarmonyTest, MessagesOfOneKindAreLines) {
  EXPECT_EQ(
      harmony(
          "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|><|"
          "start|>assistant<|channel|>commentary<|message|>c<|end|><|start|>assistant<|channel|>final<|"
          "message|"
          ">d"),
      said("c\nd", "a\nb"));
}

TEST(HarmonyTest, ACallIsAMessageWithARecipient) {
  const ChatDelta one = called({{"get_weather", R"({"city": "Graz"})"}}, "", "Hm.");
  const std::string thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant";
  EXPECT_EQ(harmony(thought +
                    "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": "
                    "\"Graz\"}<|call|>"),
            one);
  EXPECT_EQ(
      harmony(thought + " to=functions.get_weather<|channel|>commentary json<|message|>{\"city\": \"Graz\"}"),
      one);
  EXPECT_EQ(
      harmony(
          " to=functions.f<|channel|>commentary<|message|> {\"x\": \"<|call|>\"} <|call|><|start|>assistant "
          "to=g<|channel|>commentary<|message|><|call|>"),
      called({{"f", R"({"x": "<|call|>"})"}, {"g", "{}"}}));
}

TEST(HarmonyTest, WhatIsNoObjectIsNoCall) {
  EXPECT_EQ(harmony("<|channel|>commentary to=functions.f<|message|>none<|call|>"), said("none"));
  EXPECT_EQ(harmony("<|channel|>analysis to=python<|message|>print(1)<|call|>"), said("", "print(1)"));
  EXPECT_EQ(harmony("<|channel|>commentary to=functions.f<|message|>{\"a\": }<|call|>"),
            called({{"f", "{\"a\": "}}, "}"));
}

TEST(HarmonyTest, TextWithoutChannelsIsContent) {
  EXPECT_EQ(harmony("Hello."), said("Hello."));
  EXPECT_EQ(harmony("to be <|message|> or"), said("to be <|message|> or"));
  EXPECT_EQ(harmony(" to="), said(" to="));
  EXPECT_EQ(harmony("<|channel|>analy"), said(""));
  const std::string long_header = "<|channel|>" + std::string(5000, 'x');
  EXPECT_EQ(harmony(long_header), said(long_header));
}

TEST(HarmonyTest, EitherOfItsParsersReadsTheWholeAnswer) {
  const std::string text =
      "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
      "to=functions.f<|message|>{}<|call|>";
  EXPECT_EQ(parse_every_way("", "openai", text), called({{"f", "{}"}}, "", "Hm."));
  EXPECT_EQ(parse_every_way("openai_gptoss", "", text), said("{}", "Hm."));
  EXPECT_THROW(ChatFormat::make("qwen3", "openai"), InvalidArgument);
  EXPECT_THROW(ChatFormat::make("openai_gptoss", "hermes"), InvalidArgument);
}

}  // namespace
}  // namespace quire
