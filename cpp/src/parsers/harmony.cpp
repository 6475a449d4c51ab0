// gpt-oss: an answer is messages, each of a channel, and a call is one with a recipient:
// <|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.f
// <|constrain|>json<|message|>{"x": 1}<|call|>, or
// <|start|>assistant<|channel|>final<|message|>Yes.<|return|>. The prompt ends with the first
// <|start|>assistant. Recipients may stand before the channel too.
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "parsers/chat_parser_registry.h"
#include "parsers/json_call.h"
#include "parsers/structural_tag.h"

namespace quire::parsers {
namespace {

enum HarmonyMarker { kStart, kChannel, kConstrain, kMessage, kEnd, kReturn, kCall };
const std::vector<std::string> kHarmonyMarkers = {"<|start|>", "<|channel|>", "<|constrain|>", "<|message|>",
                                                  "<|end|>",   "<|return|>",  "<|call|>"};
constexpr size_t kMaxHeaderBytes = 4 * kMaxNameBytes;
constexpr size_t kMaxHeaderTokens = 256;

struct HarmonyHeader {
  std::string channel;
  std::string recipient;  // of a call, else empty
};

HarmonyHeader read_header(std::string_view header) {
  const auto word_after = [header](std::string_view begin) {
    const size_t at = header.find(begin);
    if (at == header.npos) return std::string();
    const std::string_view rest = header.substr(at + begin.size());
    return std::string(rest.substr(0, rest.find_first_of(" \n\t\r<")));
  };
  HarmonyHeader read{word_after(kHarmonyMarkers[kChannel]), word_after("to=")};
  constexpr std::string_view kFunctions = "functions.";
  if (read.recipient.starts_with(kFunctions)) read.recipient.erase(0, kFunctions.size());
  if (read.recipient == "assistant" || read.recipient.size() > kMaxNameBytes) read.recipient.clear();
  return read;
}

class HarmonyStage final : public MarkedStage {
 public:
  HarmonyStage(std::shared_ptr<const Markers> markers, bool parse_tool_calls, ChatOutput& out)
      : MarkedStage(std::move(markers)), parse_tool_calls_(parse_tool_calls), out_(out) {}

 private:
  enum class State { kHeader, kReasoning, kContent, kBeforeArguments, kArguments, kAfterArguments };

  void on_text(char byte) override {
    switch (state_) {
      case State::kHeader:
        if (header_.size() < kMaxHeaderBytes && may_begin_header(byte)) {
          header_ += byte;
        } else {
          begin_text(State::kContent);
          for (const char held : std::exchange(header_, {})) on_text(held);
          on_text(byte);
        }
        return;
      case State::kReasoning:
        if (std::exchange(separate_, false)) out_.reasoning('\n');
        return out_.reasoning(byte);
      case State::kContent:
        if (std::exchange(separate_, false)) out_.content('\n');
        return out_.content(byte);
      case State::kBeforeArguments:
        if (is_space(byte)) return;
        if (byte != '{') return give_up(byte);
        out_.begin_call(read_.recipient);
        arguments_.emplace();
        state_ = State::kArguments;
        [[fallthrough]];
      case State::kArguments: {
        const Progress progress = arguments_->put(byte, out_);
        if (progress == Progress::kBad) return give_up(byte);
        if (progress == Progress::kDone) state_ = State::kAfterArguments;
        return;
      }
      case State::kAfterArguments:
        if (!is_space(byte)) give_up(byte);
    }
  }

  void on_marker(int32_t marker) override {
    const std::string& text = markers().text(marker);
    const bool in_header = state_ == State::kHeader;
    if (state_ == State::kArguments && arguments_->in_string()) {
      for (const char byte : text) on_text(byte);
    } else if (marker == kMessage && in_header) {
      begin_message();
    } else if (marker == kMessage || (marker == kConstrain && !in_header)) {
      for (const char byte : text) on_text(byte);
    } else {
      if (marker == kEnd || marker == kReturn || marker == kCall) end_message();
      if (marker == kStart || !in_header) header_.clear();
      state_ = State::kHeader;
      if (marker <= kConstrain) header_ += text;
    }
  }

  void on_end() override {
    // A header without a message; or text that is none.
    if (state_ == State::kHeader && header_.find('<') == header_.npos) out_.content(header_);
  }

  // Before its first marker a header can only say whom it is to.
  bool may_begin_header(char byte) const {
    if (!header_.empty() && header_.find('<') != header_.npos) return true;
    const std::string header = header_ + byte;
    const std::string_view bare = trim(header);
    constexpr std::string_view kTo = "to=";
    return bare.size() < kTo.size() ? kTo.starts_with(bare) : bare.starts_with(kTo);
  }

  void begin_message() {
    read_ = read_header(std::exchange(header_, {}));
    if (!read_.recipient.empty() && parse_tool_calls_) {
      state_ = State::kBeforeArguments;
    } else {
      begin_text(read_.channel == "analysis" ? State::kReasoning : State::kContent);
    }
  }

  // Messages of one kind are lines.
  void begin_text(State state) {
    state_ = state;
    separate_ = state == State::kReasoning ? out_.has_reasoning() : out_.has_content();
  }

  void end_message() {
    if (state_ != State::kBeforeArguments) return;
    out_.begin_call(read_.recipient);
    out_.arguments("{}");
  }

  // What is no object is not the arguments of a call.
  void give_up(char byte) {
    begin_text(read_.channel == "analysis" ? State::kReasoning : State::kContent);
    on_text(byte);
  }

  const bool parse_tool_calls_;
  ChatOutput& out_;
  State state_ = State::kHeader;
  std::string header_;
  HarmonyHeader read_;
  bool separate_ = false;
  std::optional<ArgumentsReader> arguments_;
};

// Counts the tokens of messages that are reasoning.
class HarmonyCounter final : public ReasoningTokenCounter {
 public:
  explicit HarmonyCounter(std::shared_ptr<const Tokenizer> tokenizer) : tokenizer_(std::move(tokenizer)) {
    for (const std::string& text : kHarmonyMarkers)
      markers_.push_back(tokenizer_->token_to_id(text).value_or(-1));
  }

  void put(int32_t token_id) override {
    const size_t marker = std::find(markers_.begin(), markers_.end(), token_id) - markers_.begin();
    if (marker == kMessage && in_header_) {
      const HarmonyHeader read = read_header(tokenizer_->decode(header_, /*skip_special_tokens=*/false));
      counts_ = read.channel == "analysis" && read.recipient.empty();
      in_header_ = false;
    } else if (marker < markers_.size() && marker != kMessage && (marker != kConstrain || in_header_)) {
      if (marker == kStart || !in_header_) header_.clear();
      in_header_ = true;
      if (marker <= kConstrain) header_.push_back(token_id);
    } else if (!in_header_) {
      count_ += counts_ ? 1 : 0;
    } else if (header_.size() < kMaxHeaderTokens) {
      header_.push_back(token_id);
    }
  }

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<int32_t> markers_;
  std::vector<int32_t> header_;
  bool in_header_ = true;
  bool counts_ = false;
};

OrderedJson harmony_tag(const std::vector<Tool>& tools, const ToolChoice& choice) {
  const std::string separator = "<|start|>assistant";
  CallText text;
  text.begin = "<|channel|>commentary to=functions.";
  text.after_name = " <|constrain|>json<|message|>";
  text.end = "<|call|>";
  text.separator = separator;
  const OrderedJson calls = calls_format(text, tools, choice);
  if (!choice.enable_thinking.value_or(true)) return calls;
  const OrderedJson analysis = {{"type", "tag"},
                                {"begin", "<|channel|>analysis<|message|>"},
                                {"content", {{"type", "any_text"}}},
                                {"end", "<|end|>"}};
  return sequence(
      {{{"type", "optional"}, {"content", sequence({analysis, const_string(separator)})}}, calls});
}

ChannelParser harmony() {
  ChannelParser parser;
  parser.markers = kHarmonyMarkers;
  parser.make = [markers = std::make_shared<const Markers>(kHarmonyMarkers)](ChatOutput& out,
                                                                             bool parse_tool_calls) {
    return std::make_unique<HarmonyStage>(markers, parse_tool_calls, out);
  };
  parser.make_counter = [](std::shared_ptr<const Tokenizer> tokenizer) {
    return std::make_unique<HarmonyCounter>(std::move(tokenizer));
  };
  parser.structural_tag = harmony_tag;
  return parser;
}

const bool registered_harmony = register_channel_parser("openai_gptoss", "openai", harmony());

}  // namespace
}  // namespace quire::parsers
