// Reasoning between two markers, before everything else: <think>...</think>, and what other models write for
// it.
#include <optional>
#include <utility>
#include <vector>

#include "parsers/chat_parser_registry.h"
#include "parsers/structural_tag.h"

namespace quire::parsers {
namespace {

struct ThinkTags {
  std::vector<std::string> begins, ends;  // other ways to write the first of them follow it
  // The template leaves the model thinking, by default: the first marker stands in the prompt, if anywhere.
  bool thinks_first = true;
  // A call ends the reasoning too.
  bool ends_at_calls = false;
  // White space at the end of the reasoning belongs to the format.
  bool trims_end = false;
};

bool thinks_first(const ThinkTags& tags, std::optional<bool> enable_thinking) {
  return enable_thinking.value_or(tags.thinks_first);
}

class ThinkTagsStage final : public MarkedStage {
 public:
  ThinkTagsStage(std::shared_ptr<const Markers> markers, const ThinkTags& tags, bool thinks, ChatOutput& out,
                 Stage& content)
      : MarkedStage(std::move(markers)),
        num_begins_(tags.begins.size()),
        num_ends_(tags.ends.size()),
        trims_end_(tags.trims_end),
        out_(out),
        content_(content) {
    if (thinks) state_ = State::kReasoning;
  }

 private:
  enum class State {
    kBefore,  // nothing but white space yet, and the model may think or not
    kReasoning,
    kContent
  };

  void on_text(char byte) override {
    const bool holds_space = state_ == State::kBefore || (state_ == State::kReasoning && trims_end_);
    if (holds_space && is_space(byte) && space_.size() < kMaxHeldBytes) {
      space_ += byte;
      return;
    }
    if (state_ == State::kReasoning) {
      out_.reasoning(std::exchange(space_, {}));
      return out_.reasoning(byte);
    }
    begin_content();
    content_.put(byte);
  }

  void on_marker(int32_t marker) override {
    const auto index = static_cast<size_t>(marker);
    if (state_ == State::kReasoning) space_.clear();
    if (state_ == State::kContent || index >= num_begins_ + num_ends_) {
      begin_content();
      content_.put_all(markers().text(marker));
    } else if (index >= num_begins_) {
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

  const size_t num_begins_, num_ends_;
  const bool trims_end_;
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
  parser.markers = tags.begins;
  parser.num_begins = tags.begins.size();
  parser.markers.insert(parser.markers.end(), tags.ends.begin(), tags.ends.end());
  parser.make = [tags, markers = parser.markers](ChatOutput& out, Stage& content,
                                                 const std::string& call_marker,
                                                 const ChatParserOptions& options) -> std::unique_ptr<Stage> {
    std::vector<std::string> texts = markers;
    if (tags.ends_at_calls) texts.push_back(call_marker);
    return std::make_unique<ThinkTagsStage>(std::make_shared<const Markers>(std::move(texts)), tags,
                                            thinks_first(tags, options.enable_thinking), out, content);
  };
  parser.make_counter = [tags](const Tokenizer& tokenizer, const std::string& call_marker,
                               const ChatParserOptions& options) -> std::unique_ptr<ReasoningTokenCounter> {
    const auto id = [&tokenizer](const std::string& text) {
      return text.empty() ? -1 : tokenizer.token_to_id(text).value_or(-1);
    };
    const int32_t end = id(tags.ends.front());
    if (end < 0) return nullptr;
    return std::make_unique<ThinkTagsCounter>(id(tags.begins.front()), end,
                                              tags.ends_at_calls ? id(call_marker) : -1,
                                              thinks_first(tags, options.enable_thinking));
  };
  parser.structural_tag = [tags](const ToolChoice& choice) -> OrderedJson {
    // White space after the end, as the templates write it, or the model would have to leave its habit.
    const auto thoughts = [&tags](const std::string& begin) {
      return sequence({{{"type", "tag"},
                        {"begin", begin},
                        {"content", {{"type", "any_text"}}},
                        {"end", tags.ends.front()}},
                       {{"type", "regex"}, {"pattern", "\\n{0,2}"}}});
    };
    if (thinks_first(tags, choice.enable_thinking)) return thoughts("");
    if (choice.enable_thinking.has_value()) return nullptr;
    return {{"type", "optional"}, {"content", thoughts(tags.begins.front())}};
  };
  return parser;
}

ThinkTags think() { return {.begins = {"<think>"}, .ends = {"</think>"}}; }

ThinkTags think_or_call() {
  ThinkTags tags = think();
  tags.ends_at_calls = true;
  return tags;
}

ThinkTags think_and_trim() {
  ThinkTags tags = think_or_call();
  tags.trims_end = true;
  return tags;
}

ThinkTags think_and_trim_if_asked() {
  ThinkTags tags = think_and_trim();
  tags.thinks_first = false;
  return tags;
}

ThinkTags think_if_asked() {
  ThinkTags tags = think();
  tags.thinks_first = false;
  return tags;
}

const bool registered_deepseek_r1_reasoning = register_reasoning_parser("deepseek_r1", think_tags(think()));
const bool registered_deepseek_v3_reasoning =
    register_reasoning_parser("deepseek_v3", think_tags(think_if_asked()));
const bool registered_deepseek_v4_reasoning =
    register_reasoning_parser("deepseek_v4", think_tags(think_and_trim_if_asked()));
const bool registered_glm45_reasoning = register_reasoning_parser("glm45", think_tags(think_and_trim()));
const bool registered_glm47_reasoning = register_reasoning_parser("glm47", think_tags(think_and_trim()));
const bool registered_granite_reasoning = register_reasoning_parser(
    "granite", think_tags({.begins = {"Here is my thought process:", "Here's my thought process:"},
                           .ends = {"Here is my response:", "Here's my response:"},
                           .thinks_first = false}));
const bool registered_holo2_reasoning = register_reasoning_parser("holo2", think_tags(think()));
const bool registered_kimi_k2_reasoning = register_reasoning_parser("kimi_k2", think_tags(think_and_trim()));
const bool registered_mimo_reasoning = register_reasoning_parser("mimo", think_tags(think_or_call()));
const bool registered_minimax_m2_reasoning =
    register_reasoning_parser("minimax_m2", think_tags(think_and_trim()));
const bool registered_mistral_reasoning = register_reasoning_parser(
    "mistral", think_tags({.begins = {"[THINK]"}, .ends = {"[/THINK]"}, .thinks_first = false}));
const bool registered_nemotron_v3_reasoning =
    register_reasoning_parser("nemotron_v3", think_tags(think_and_trim()));
const bool registered_olmo3_reasoning = register_reasoning_parser("olmo3", think_tags(think()));
const bool registered_qwen3_reasoning = register_reasoning_parser("qwen3", think_tags(think_or_call()));
const bool registered_seed_oss_reasoning = register_reasoning_parser(
    "seed_oss", think_tags({.begins = {"<seed:think>"}, .ends = {"</seed:think>"}, .ends_at_calls = true}));
const bool registered_step3p5_reasoning = register_reasoning_parser("step3p5", think_tags(think()));
const bool registered_step3_reasoning = register_reasoning_parser("step3", think_tags(think()));

}  // namespace
}  // namespace quire::parsers
