// Reasoning between two markers, before everything else: <think>...</think>, and what other models write for
// it.
#include <optional>
#include <utility>

#include "parsers/chat_parser_registry.h"
#include "parsers/structural_tag.h"

namespace quire::parsers {
namespace {

struct ThinkTags {
  std::string begin, end;
  // The template leaves the model thinking, by default: the first marker stands in the prompt, if anywhere.
  bool thinks_first = true;
  // A call ends the reasoning too.
  bool ends_at_calls = false;
};

bool thinks_first(const ThinkTags& tags, std::optional<bool> enable_thinking) {
  return enable_thinking.value_or(tags.thinks_first);
}

class ThinkTagsStage final : public MarkedStage {
 public:
  ThinkTagsStage(std::shared_ptr<const Markers> markers, bool thinks_first, ChatOutput& out, Stage& content)
      : MarkedStage(std::move(markers)), out_(out), content_(content) {
    if (thinks_first) state_ = State::kReasoning;
  }

 private:
  enum class State {
    kBefore,  // nothing but white space yet, and the model may think or not
    kReasoning,
    kContent
  };
  enum Marker { kBegin, kEnd, kCall };

  void on_text(char byte) override {
    if (state_ == State::kReasoning) return out_.reasoning(byte);
    if (state_ == State::kBefore && is_space(byte) && space_.size() < kMaxHeldBytes) {
      space_ += byte;
      return;
    }
    begin_content();
    content_.put(byte);
  }

  void on_marker(int32_t marker) override {
    if (state_ == State::kContent || marker == kCall) {
      begin_content();
      content_.put_all(markers().text(marker));
    } else if (marker == kEnd) {
      space_.clear();
      state_ = State::kContent;
    } else {  // within the reasoning it repeats the prompt's
      space_.clear();
      state_ = State::kReasoning;
    }
  }

  void on_end() override {
    if (state_ == State::kBefore) begin_content();
    content_.finish();
  }

  void begin_content() {
    state_ = State::kContent;
    content_.put_all(std::exchange(space_, {}));
  }

  ChatOutput& out_;
  Stage& content_;
  State state_ = State::kBefore;
  std::string space_;
};

class ThinkTagsCounter final : public ReasoningTokenCounter {
 public:
  ThinkTagsCounter(int32_t begin, int32_t end, int32_t call, bool thinking)
      : begin_(begin), end_(end), call_(call), thinking_(thinking) {}

  void put(int32_t token_id) override {
    if (token_id == begin_) {
      thinking_ = thinking_ || !seen_;
    } else if (token_id == end_ || token_id == call_) {
      thinking_ = false;
    } else if (thinking_) {
      ++count_;
    }
    seen_ = seen_ || token_id == end_;
  }

 private:
  const int32_t begin_, end_, call_;
  bool thinking_;
  bool seen_ = false;  // the end
};

ReasoningParser think_tags(ThinkTags tags) {
  ReasoningParser parser;
  if (!tags.begin.empty()) parser.markers.push_back(tags.begin);
  parser.markers.push_back(tags.end);
  parser.make = [tags](ChatOutput& out, Stage& content, const std::string& call_marker,
                       const ChatParserOptions& options) -> std::unique_ptr<Stage> {
    auto markers = std::make_shared<const Markers>(
        std::vector<std::string>{tags.begin, tags.end, tags.ends_at_calls ? call_marker : ""});
    return std::make_unique<ThinkTagsStage>(std::move(markers), thinks_first(tags, options.enable_thinking),
                                            out, content);
  };
  parser.make_counter = [tags](const Tokenizer& tokenizer, const std::string& call_marker,
                               const ChatParserOptions& options) -> std::unique_ptr<ReasoningTokenCounter> {
    const auto id = [&tokenizer](const std::string& text) {
      return text.empty() ? -1 : tokenizer.token_to_id(text).value_or(-1);
    };
    if (id(tags.end) < 0) return nullptr;
    return std::make_unique<ThinkTagsCounter>(id(tags.begin), id(tags.end),
                                              tags.ends_at_calls ? id(call_marker) : -1,
                                              thinks_first(tags, options.enable_thinking));
  };
  parser.structural_tag = [tags](const ToolChoice& choice) -> OrderedJson {
    // White space after the end, as the templates write it, or the model would have to leave its habit.
    const auto thoughts = [&tags](const std::string& begin) {
      return sequence(
          {{{"type", "tag"}, {"begin", begin}, {"content", {{"type", "any_text"}}}, {"end", tags.end}},
           {{"type", "regex"}, {"pattern", "\\n{0,2}"}}});
    };
    if (thinks_first(tags, choice.enable_thinking)) return thoughts("");
    if (choice.enable_thinking.has_value() || tags.begin.empty()) return nullptr;
    return {{"type", "optional"}, {"content", thoughts(tags.begin)}};
  };
  return parser;
}

const bool registered_deepseek_r1 =
    register_reasoning_parser("deepseek_r1", think_tags({.begin = "<think>", .end = "</think>"}));
const bool registered_qwen3 = register_reasoning_parser(
    "qwen3", think_tags({.begin = "<think>", .end = "</think>", .ends_at_calls = true}));

}  // namespace
}  // namespace quire::parsers
