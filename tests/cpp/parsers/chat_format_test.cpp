// What all formats have in common.
#include <gtest/gtest.h>

#include <algorithm>

#include "parsers/answers.h"
#include "parsers/chat_parser_registry.h"
#include "quire/error.h"
#include "util/error_of.h"
#include "util/sanitized.h"

namespace quire {
namespace {

// Tokens by their place, of which the first are special.
class ListTokenizer final : public Tokenizer {
 public:
  ListTokenizer(std::vector<std::string> tokens, int32_t num_special)
      : tokens_(std::move(tokens)), num_special_(num_special) {}

  std::vector<int32_t> encode(std::string_view, bool) const override { return {}; }
  Encoding encode_with_offsets(std::string_view, bool) const override { return {}; }
  std::string decode(std::span<const int32_t> ids, bool) const override {
    std::string text;
    for (const int32_t id : ids) text += tokens_.at(id);
    return text;
  }
  std::unique_ptr<IncrementalDetokenizer> detokenizer(bool) const override { return nullptr; }
  int32_t vocab_size() const override { return static_cast<int32_t>(tokens_.size()); }
  std::optional<std::string> id_to_token(int32_t id) const override { return tokens_.at(id); }
  std::optional<int32_t> token_to_id(std::string_view token) const override {
    const auto found = std::find(tokens_.begin(), tokens_.end(), token);
    if (found == tokens_.end()) return std::nullopt;
    return static_cast<int32_t>(found - tokens_.begin());
  }
  bool is_special(int32_t id) const override { return id < num_special_; }
  std::string_view token_bytes(int32_t) const override { return {}; }
  size_t max_token_bytes() const override { return 16; }

 private:
  std::vector<std::string> tokens_;
  int32_t num_special_;
};

int64_t count_reasoning(const ChatFormat& format, const std::vector<int32_t>& ids,
                        const ChatParserOptions& options = {}) {
  const auto at_once = format.parser(options), one_by_one = format.parser(options);
  at_once->append("", ids);
  for (const int32_t id : ids) one_by_one->append("", {&id, 1});
  EXPECT_EQ(one_by_one->num_reasoning_tokens(), at_once->num_reasoning_tokens());
  return at_once->num_reasoning_tokens();
}

// All names, each with what it can go with.
std::vector<std::shared_ptr<const ChatFormat>> all_formats() {
  std::vector<std::shared_ptr<const ChatFormat>> formats;
  for (const std::string& name : ChatFormat::tool_parser_names())
    formats.push_back(ChatFormat::make("", name));
  for (const std::string& name : ChatFormat::reasoning_parser_names())
    formats.push_back(ChatFormat::make(name, ""));
  return formats;
}

TEST(ChatFormatTest, NamesThatAreNotKnownAreRefusedWithThoseThatAre) {
  const std::string message = error_of([] { ChatFormat::make("", "herms"); });
  EXPECT_NE(message.find("tool_parser 'herms' is not known; there are "), message.npos) << message;
  for (const std::string& name : ChatFormat::tool_parser_names())
    EXPECT_NE(message.find(name), message.npos) << name;
  EXPECT_NE(error_of([] { ChatFormat::make("qwen", ""); }).find("reasoning_parser 'qwen'"),
            std::string::npos);
}

TEST(ChatFormatTest, WithoutParsersTheTextIsTheContent) {
  EXPECT_EQ(parse_every_way("", "", " <think> Hi </think>\n"), said(" <think> Hi </think>\n"));
}

TEST(ChatFormatTest, TextIsShownAsSoonAsItIsCertain) {
  const auto parser = ChatFormat::make("", "hermes")->parser();
  EXPECT_EQ(parser->append("Hello <tool"), said("Hello "));
  EXPECT_EQ(parser->append("s>"), said("<tools>"));
  EXPECT_TRUE(parser->append("<tool_call>{\"name\": \"f\", \"arguments\": ").empty());
  EXPECT_EQ(parser->append("{\"a").tool_calls.at(0).arguments, "{\"a");
  const ChatDelta more = parser->append("bc\": 1");
  EXPECT_EQ(more.tool_calls.at(0).arguments, "bc\": 1");
  EXPECT_EQ(more.tool_calls.at(0).name, "");
  EXPECT_EQ(more.tool_calls.at(0).id, "");
}

TEST(ChatFormatTest, SpecialTokensThatAreNotItsOwnAreTakenOut) {
  const auto tokenizer = std::make_shared<ListTokenizer>(
      std::vector<std::string>{"<|im_end|>", "<tool_call>", "</tool_call>", "a"}, /*num_special=*/3);
  const auto format = ChatFormat::make("qwen3", "hermes", tokenizer);
  EXPECT_FALSE(format->skip_special_tokens());
  ChatParserOptions options;
  options.enable_thinking = false;
  EXPECT_EQ(parse_every_way(*format, options,
                            "a<|im_end|><|im<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": "
                            "\"<|im_end|>\"}}</tool_call><|im_end|>"),
            called({{"f", R"({"x": ""})"}}, "a<|im"));
  options.parse_tool_calls = false;
  EXPECT_EQ(parse_every_way(*format, options, "<tool_call>a</tool_call>"), said("a"));
  // A format none of whose markers are special tokens reads text without them.
  EXPECT_TRUE(ChatFormat::make("", "pythonic", tokenizer)->skip_special_tokens());
  EXPECT_TRUE(ChatFormat::make("", "llama3_json", tokenizer)->skip_special_tokens());
}

TEST(ChatFormatTest, TokensOfReasoningAreCounted) {
  const auto tokenizer =
      std::make_shared<ListTokenizer>(std::vector<std::string>{"<think>", "</think>", "<tool_call>", "a"}, 3);
  const auto format = ChatFormat::make("qwen3", "hermes", tokenizer);
  EXPECT_EQ(count_reasoning(*format, {0, 3, 3, 1, 3, 0, 3}), 2);
  EXPECT_EQ(count_reasoning(*format, {3, 3, 3}), 3);
  EXPECT_EQ(count_reasoning(*format, {3, 2, 3}), 1);  // a call ends it
  ChatParserOptions options;
  options.enable_thinking = false;
  EXPECT_EQ(count_reasoning(*format, {3, 3}, options), 0);
  EXPECT_EQ(count_reasoning(*format, {0, 3, 1}, options), 1);
  EXPECT_EQ(count_reasoning(*ChatFormat::make("qwen3", "hermes"), {0, 3}), 0);
}

TEST(ChatFormatTest, TokensOfAnalysisAreCounted) {
  const auto tokenizer = std::make_shared<ListTokenizer>(
      std::vector<std::string>{"<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>",
                               "<|return|>", "<|call|>", "anal", "ysis", "final", "assistant", " to=f", "a"},
      7);
  const auto format = ChatFormat::make("openai_gptoss", "openai", tokenizer);
  EXPECT_FALSE(format->skip_special_tokens());
  EXPECT_EQ(count_reasoning(*format, {1, 7, 8, 3, 12, 12, 4, 0, 10, 1, 9, 3, 12, 5}), 2);
  EXPECT_EQ(count_reasoning(*format, {1, 7, 8, 11, 3, 12, 6}), 0);  // a call
  EXPECT_EQ(count_reasoning(*format, {12, 12}), 0);
}

TEST(ChatFormatTest, PlainTextIsContentInEveryFormat) {
  const std::string text = "Is 1 < 2 [yes]? \"Ja\" {so} é🦊\n\n`a > b` | end";
  ChatParserOptions options;
  options.enable_thinking = false;
  for (const auto& format : all_formats()) EXPECT_EQ(parse_every_way(*format, options, text), said(text));
}

TEST(ChatFormatTest, WhatIsHeldBackIsBounded) {
  if (kSanitized) GTEST_SKIP() << "megabytes for each format";
  for (const std::string& name : ChatFormat::tool_parser_names()) {
    const parsers::ToolParser* found = parsers::find_tool_parser(name);
    const std::string marker = found == nullptr ? "<|channel|>" : found->call_marker;
    for (const std::string begin : {"x", " ", "{\"x\": \"", "[{\"name\": \"f\", \"x\": \""}) {
      std::string text = marker + begin;
      text.resize(parsers::kMaxHeldBytes + 10'000, begin == " " ? ' ' : 'x');
      if (begin == " ") text += 'x';
      EXPECT_GT(ChatFormat::make("", name)->parser()->append(text).content.size(), 9'000u) << name << begin;
    }
  }
}

TEST(ChatFormatTest, LongNamesAreNone) {
  const std::string name(1'000, 'f');
  for (const auto& [parser, begin] : std::vector<std::pair<std::string, std::string>>{
           {"hermes", "<tool_call>{\"name\": \""},
           {"deepseek_v31", "<｜tool▁call▁begin｜>"},
           {"mistral", "[TOOL_CALLS]"},
           {"qwen3_coder", "<tool_call><function="},
           {"pythonic", "["},
       }) {
    const std::string text = begin + name + name;  // which might go on
    EXPECT_GT(ChatFormat::make("", parser)->parser()->append(text).content.size(), 300u) << parser;
  }
}

// What repeats what formats look for would take hours, were any of it read again and again.
TEST(ChatFormatTest, TimeGrowsWithTheTextAlone) {
  constexpr size_t kBytes = kSanitized ? 5'000 : 200'000;
  for (const char* unit :
       {"{", "[", "<", "<tool_call>", "<tool_call>{\"name\": ", "{\"name\": \"f\", \"arguments\": {\"a\": \"",
        "[f(x=", "<function=f>", "<function=f><parameter=a>", "\n", "[TOOL_CALLS]", "<|channel|>",
        "<|message|>", "<think>", "<tool_call>{\"arguments\": {}, \"a\": \"", "\\", "[{"}) {
    std::string text;
    while (text.size() < kBytes) text += unit;
    for (const auto& format : all_formats()) {
      const ChatDelta answer = format->parse(text);
      EXPECT_LE(answer.content.size() + answer.reasoning.size(), text.size());
    }
  }
}

}  // namespace
}  // namespace quire
