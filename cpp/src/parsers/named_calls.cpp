#include "parsers/named_calls.h"

#include <memory>
#include <optional>
#include <utility>

#include "parsers/json_call.h"

namespace quire::parsers {
namespace {

constexpr size_t kMaxHeadBytes = 4 * kMaxNameBytes;

class NamedCalls final : public MarkedStage {
 public:
  NamedCalls(std::shared_ptr<const Markers> markers, const NamedCallsFormat& format, ChatOutput& out)
      : MarkedStage(std::move(markers)),
        brace_ends_head_(format.arguments_begin.empty()),
        read_head_(format.read_head),
        out_(out) {}

 private:
  enum Marker { kBegin, kArgumentsBegin };
  enum class State { kContent, kHead, kBeforeArguments, kArguments };

  void on_text(char byte) override {
    switch (state_) {
      case State::kContent: return out_.content(byte);
      case State::kHead:
        if (brace_ends_head_ && byte == '{') {
          if (end_head()) return on_text(byte);
          return give_up(byte);
        }
        if (head_.size() >= kMaxHeadBytes) return give_up(byte);
        head_ += byte;
        held_ += byte;
        return;
      case State::kBeforeArguments:
        if (is_space(byte) && held_.size() < 2 * kMaxHeadBytes) {
          held_ += byte;
          return;
        }
        if (byte != '{') return give_up(byte);
        held_.clear();
        out_.begin_call(std::move(call_.name), std::move(call_.id));
        arguments_.emplace();
        state_ = State::kArguments;
        [[fallthrough]];
      case State::kArguments:
        const Progress progress = arguments_->put(byte, out_);
        if (progress == Progress::kBad) return give_up(byte);
        if (progress == Progress::kDone) state_ = State::kContent;
    }
  }

  void on_marker(int32_t marker) override {
    const std::string& text = markers().text(marker);
    if (state_ == State::kArguments && arguments_->in_string()) {
      for (const char byte : text) on_text(byte);
    } else if (marker == kArgumentsBegin && state_ == State::kHead) {
      held_ += text;
      if (!end_head()) release();
    } else {
      release();
      if (marker == kArgumentsBegin) out_.content(text);
      if (marker != kBegin) return;
      held_ = text;
      head_.clear();
      state_ = State::kHead;
    }
  }

  void on_end() override { release(); }

  bool end_head() {
    call_ = read_head_(head_);
    state_ = State::kBeforeArguments;
    return !call_.name.empty() && call_.name.size() <= kMaxNameBytes;
  }

  // What is at hand is content, and so is what follows.
  void give_up(char byte) {
    release();
    on_text(byte);
  }

  void release() {
    out_.content(std::exchange(held_, {}));
    state_ = State::kContent;
  }

  const bool brace_ends_head_;
  CallHead (*const read_head_)(std::string_view);
  ChatOutput& out_;
  State state_ = State::kContent;
  std::string held_;  // the call at hand, as long as it is not certain
  std::string head_;
  CallHead call_;
  std::optional<ArgumentsReader> arguments_;
};

std::vector<std::string> markers_of(const NamedCallsFormat& format) {
  std::vector<std::string> markers = {format.begin, format.arguments_begin};
  markers.insert(markers.end(), format.dropped.begin(), format.dropped.end());
  return markers;
}

}  // namespace

std::unique_ptr<Stage> make_named_calls(const NamedCallsFormat& format, ChatOutput& out) {
  return std::make_unique<NamedCalls>(std::make_shared<const Markers>(markers_of(format)), format, out);
}

ToolParser named_calls(NamedCallsFormat format) {
  ToolParser parser;
  parser.markers = markers_of(format);
  parser.call_marker = format.text.first.empty() ? format.begin : format.text.first;
  parser.make = [markers = std::make_shared<const Markers>(parser.markers), format](ChatOutput& out,
                                                                                    const Tools&) {
    return std::make_unique<NamedCalls>(markers, format, out);
  };
  parser.structural_tag = [text = format.text](const std::vector<Tool>& tools, const ToolChoice& choice) {
    return calls_format(text, tools, choice);
  };
  return parser;
}

}  // namespace quire::parsers
