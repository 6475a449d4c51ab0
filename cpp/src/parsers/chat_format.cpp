// Chains of stages: special tokens are taken out, reasoning is split off, calls are found in the rest.
#include <algorithm>
#include <utility>

#include "parsers/chat_output.h"
#include "parsers/chat_parser_registry.h"
#include "parsers/stage.h"
#include "parsers/structural_tag.h"
#include "parsers/tools.h"
#include "quire/chat_parsers.h"
#include "quire/error.h"
#include "util/str.h"

namespace quire {
namespace parsers {
namespace {

// Takes markers out of the text.
class SpecialTokenFilter final : public MarkedStage {
 public:
  SpecialTokenFilter(std::shared_ptr<const Markers> special_tokens, Stage& next)
      : MarkedStage(std::move(special_tokens)), next_(next) {}

 private:
  void on_text(char byte) override { next_.put(byte); }
  void on_marker(int32_t) override {}
  void on_end() override { next_.finish(); }

  Stage& next_;
};

// Where there are no calls.
class PlainContent final : public Stage {
 public:
  explicit PlainContent(ChatOutput& out) : out_(out) {}
  void put(char byte) override { out_.content(byte); }
  void finish() override {}

 private:
  ChatOutput& out_;
};

class ChatParserImpl final : public ChatParser {
 public:
  ChatDelta append(std::string_view text, std::span<const int32_t> token_ids) override {
    stages_.back()->put_all(text);
    if (counter_) {
      for (const int32_t id : token_ids) counter_->put(id);
    }
    return out_.take();
  }
  ChatDelta finish() override {
    stages_.back()->finish();
    out_.finish();
    return out_.take();
  }
  int64_t num_reasoning_tokens() const override { return counter_ ? counter_->count() : 0; }

  // What the stages borrow.
  std::shared_ptr<const ChatFormat> format_;
  Tools tools_;
  ChatOutput out_;
  std::vector<std::unique_ptr<Stage>> stages_;  // the last one first
  std::unique_ptr<ReasoningTokenCounter> counter_;
};

std::string known(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

class ChatFormatImpl final : public ChatFormat, public std::enable_shared_from_this<ChatFormatImpl> {
 public:
  ChatFormatImpl(const std::string& reasoning_name, const std::string& tool_name,
                 std::shared_ptr<const Tokenizer> tokenizer)
      : tokenizer_(std::move(tokenizer)), has_tool_parser_(!tool_name.empty()) {
    find_parsers(reasoning_name, tool_name);
    std::vector<std::string> reasoning_markers, call_markers;
    if (channels_ != nullptr) reasoning_markers = channels_->markers;
    if (reasoning_ != nullptr) reasoning_markers = reasoning_->markers;
    if (calls_ != nullptr) call_markers = calls_->markers;
    find_special_tokens(reasoning_markers, call_markers);
  }

  std::unique_ptr<ChatParser> parser(const ChatParserOptions& options) const override {
    auto parser = std::make_unique<ChatParserImpl>();
    parser->format_ = shared_from_this();
    parser->tools_ = Tools(options.tools_json);
    auto& stages = parser->stages_;
    const bool parse_calls = options.parse_tool_calls && has_tool_parser_;
    const std::string call_marker = parse_calls && calls_ != nullptr ? calls_->call_marker : "";
    if (channels_ != nullptr) {
      stages.push_back(channels_->make(parser->out_, parse_calls));
      if (tokenizer_) parser->counter_ = channels_->make_counter(tokenizer_);
    } else {
      if (parse_calls) {
        stages.push_back(calls_->make(parser->out_, parser->tools_));
      } else {
        stages.push_back(std::make_unique<PlainContent>(parser->out_));
      }
      if (reasoning_ != nullptr) {
        stages.push_back(reasoning_->make(parser->out_, *stages.back(), call_marker, options));
        if (tokenizer_) parser->counter_ = reasoning_->make_counter(*tokenizer_, call_marker, options);
      }
    }
    const auto& filter = parse_calls ? special_tokens_ : special_tokens_without_calls_;
    if (filter) stages.push_back(std::make_unique<SpecialTokenFilter>(filter, *stages.back()));
    return parser;
  }

  std::optional<bool> thinks_after(std::string_view prompt) const override {
    if (reasoning_ == nullptr) return std::nullopt;
    while (!prompt.empty() && is_space(prompt.back())) prompt.remove_suffix(1);
    for (size_t i = 0; i < reasoning_->markers.size(); ++i) {
      if (prompt.ends_with(reasoning_->markers[i])) return i < reasoning_->num_begins;
    }
    return std::nullopt;
  }
  bool has_tool_parser() const override { return has_tool_parser_; }
  bool skip_special_tokens() const override { return skip_special_tokens_; }

  std::string structural_tag(const std::string& tools_json, const ToolChoice& choice) const override {
    if (!has_tool_parser_)
      throw InvalidArgument("a structural tag needs a tool_parser: make the format with the name of one");
    const Tools all(tools_json);
    std::vector<Tool> tools;
    for (const Tool& tool : all.all()) {
      if (choice.name.empty() || tool.name == choice.name) tools.push_back(tool);
    }
    if (tools.empty()) {
      throw InvalidArgument(choice.name.empty()
                                ? std::string("tools is empty: calls need at least one")
                                : str("tool_choice '", choice.name, "' is none of the tools"));
    }
    if (!choice.name.empty()) tools.resize(1);
    OrderedJson format;
    if (channels_ != nullptr) {
      format = channels_->structural_tag(tools, choice);
    } else {
      std::vector<OrderedJson> elements;
      if (reasoning_ != nullptr) elements.push_back(reasoning_->structural_tag(choice));
      if (!elements.empty() && elements[0].is_null()) elements.clear();
      elements.push_back(calls_->structural_tag(tools, choice));
      format = sequence(std::move(elements));
    }
    return OrderedJson{{"type", "structural_tag"}, {"format", std::move(format)}}.dump();
  }

 private:
  void find_parsers(const std::string& reasoning_name, const std::string& tool_name) {
    const ChannelParser* reasoning_channels = find_channel_reasoning_parser(reasoning_name);
    const ChannelParser* call_channels = find_channel_tool_parser(tool_name);
    if (!reasoning_name.empty() && reasoning_channels == nullptr) {
      reasoning_ = find_reasoning_parser(reasoning_name);
      if (reasoning_ == nullptr)
        throw InvalidArgument(str("reasoning_parser '", reasoning_name, "' is not known; there are ",
                                  known(reasoning_parser_names())));
    }
    if (!tool_name.empty() && call_channels == nullptr) {
      calls_ = find_tool_parser(tool_name);
      if (calls_ == nullptr)
        throw InvalidArgument(
            str("tool_parser '", tool_name, "' is not known; there are ", known(tool_parser_names())));
    }
    channels_ = reasoning_channels != nullptr ? reasoning_channels : call_channels;
    const bool fits = channels_ == nullptr || ((reasoning_channels == channels_ || reasoning_name.empty()) &&
                                               (call_channels == channels_ || tool_name.empty()));
    if (!fits)
      throw InvalidArgument(str("reasoning_parser '", reasoning_name, "' and tool_parser '", tool_name,
                                "' do not go with each other: one of them reads the whole answer"));
  }

  void find_special_tokens(const std::vector<std::string>& reasoning_markers,
                           const std::vector<std::string>& call_markers) {
    if (!tokenizer_) {
      skip_special_tokens_ = reasoning_markers.empty() && call_markers.empty();
      return;
    }
    std::vector<std::string> foreign, foreign_without_calls;
    for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
      if (!tokenizer_->is_special(id)) continue;
      const std::string text = tokenizer_->id_to_token(id).value_or("");
      const auto within = [&text](const std::string& marker) { return marker.find(text) != marker.npos; };
      if (text.empty()) continue;
      const bool is_reasoning = std::any_of(reasoning_markers.begin(), reasoning_markers.end(), within);
      const bool is_call = std::any_of(call_markers.begin(), call_markers.end(), within);
      if (is_reasoning || is_call) skip_special_tokens_ = false;
      if (!is_reasoning) foreign_without_calls.push_back(text);
      if (!is_reasoning && !is_call) foreign.push_back(text);
    }
    if (skip_special_tokens_) return;  // the text comes without them
    special_tokens_ = std::make_shared<const Markers>(std::move(foreign));
    special_tokens_without_calls_ = std::make_shared<const Markers>(std::move(foreign_without_calls));
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  bool has_tool_parser_;
  const ToolParser* calls_ = nullptr;
  const ReasoningParser* reasoning_ = nullptr;
  const ChannelParser* channels_ = nullptr;
  bool skip_special_tokens_ = true;
  std::shared_ptr<const Markers> special_tokens_,
      special_tokens_without_calls_;  // to be taken out of the text
};

}  // namespace
}  // namespace parsers

ChatParser::~ChatParser() = default;
ChatFormat::~ChatFormat() = default;

void join(ChatDelta& answer, const ChatDelta& delta) {
  answer.reasoning += delta.reasoning;
  answer.content += delta.content;
  for (const ToolCallDelta& call : delta.tool_calls) {
    if (answer.tool_calls.empty() || answer.tool_calls.back().index != call.index) {
      answer.tool_calls.push_back(call);
    } else {
      answer.tool_calls.back().arguments += call.arguments;
    }
  }
}

std::shared_ptr<const ChatFormat> ChatFormat::make(const std::string& reasoning_parser,
                                                   const std::string& tool_parser,
                                                   std::shared_ptr<const Tokenizer> tokenizer) {
  return std::make_shared<parsers::ChatFormatImpl>(reasoning_parser, tool_parser, std::move(tokenizer));
}

ChatDelta ChatFormat::parse(std::string_view text, const ChatParserOptions& options) const {
  const std::unique_ptr<ChatParser> one = parser(options);
  ChatDelta answer = one->append(text);
  join(answer, one->finish());
  return answer;
}

}  // namespace quire
