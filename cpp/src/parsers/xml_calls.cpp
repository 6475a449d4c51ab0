#include "parsers/xml_calls.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "parsers/argument_value.h"

namespace quire::parsers {
namespace {

class XmlCalls final : public MarkedStage {
 public:
  XmlCalls(std::shared_ptr<const Markers> markers, const XmlCallsFormat& format, ChatOutput& out,
           const Tools& tools)
      : MarkedStage(std::move(markers)), format_(format), out_(out), tools_(tools) {}

 private:
  enum class State {
    kContent,
    kWrapped,  // a call should follow
    kName,
    kCall,  // between arguments
    kKey,
    kBeforeValue,
    kValue
  };

  void on_text(char byte) override {
    switch (state_) {
      case State::kContent: return out_.content(byte);
      case State::kWrapped:
        if (!is_space(byte) || held_.size() >= kMaxHeldBytes) return give_up(byte);
        held_ += byte;
        return;
      case State::kName:
        if (name_.size() >= kMaxNameBytes) return give_up(byte);
        name_ += byte;
        held_ += byte;
        return;
      case State::kCall:
      case State::kBeforeValue:
        if (!is_space(byte)) return give_up(byte);
        if (!held_.empty() && held_.size() < kMaxHeldBytes) held_ += byte;
        return;
      case State::kKey:
        if (key_.size() >= kMaxNameBytes) return give_up(byte);
        key_ += byte;
        held_ += byte;
        return;
      case State::kValue: return value_.put(byte, out_);
    }
  }

  void on_marker(int32_t marker) override {
    const std::string& text = markers().text(marker);
    switch (state_) {
      case State::kName:
        if (format_.name_end.empty() ? text == format_.parameter_begin || text == format_.call_end
                                     : text == format_.name_end) {
          if (!begin_call()) return give_up(text);
          if (format_.name_end.empty()) on_marker(marker);
          return;
        }
        return give_up(text);
      case State::kCall:
        if (text == format_.parameter_begin) {
          key_.clear();
          held_ = text;
          state_ = State::kKey;
        } else if (text == format_.call_end ||
                   (!format_.wrapper_end.empty() && text == format_.wrapper_end)) {
          end_call(text == format_.call_end);
        } else {
          give_up(text);
        }
        return;
      case State::kKey:
        if (text != format_.key_end) return give_up(text);
        held_ += text;
        state_ = State::kBeforeValue;
        if (format_.value_begin.empty()) begin_value();
        return;
      case State::kBeforeValue:
        if (text != format_.value_begin) return give_up(text);
        return begin_value();
      case State::kValue:
        if (text == format_.value_end || text == format_.parameter_begin || text == format_.call_end) {
          value_.end(out_);
          state_ = State::kCall;
          if (text != format_.value_end) on_marker(marker);
          return;
        }
        for (const char byte : text) value_.put(byte, out_);
        return;
      case State::kWrapped:
      case State::kContent: return on_content_marker(text);
    }
  }

  void on_end() override {
    if (state_ == State::kWrapped || state_ == State::kName) release();
  }

  void on_content_marker(const std::string& text) {
    const bool in_wrapper = state_ == State::kWrapped;
    if (text == format_.call_begin && (in_wrapper || !format_.needs_wrapper)) {
      held_ += text;
      name_.clear();
      state_ = State::kName;
      return;
    }
    release();
    if (text == format_.wrapper_begin) {
      held_ = text;
      after_call_ = false;
      state_ = State::kWrapped;
    } else if (text != format_.wrapper_end || !std::exchange(after_call_, false)) {
      out_.content(text);
    }
  }

  bool begin_call() {
    const std::string name(trim(name_));
    if (name.empty() || std::any_of(name.begin(), name.end(), is_space)) return false;
    held_.clear();
    name_ = name;
    out_.begin_call(name);
    out_.arguments('{');
    is_first_ = true;
    after_call_ = true;
    state_ = State::kCall;
    return true;
  }

  void begin_value() {
    held_.clear();
    std::string name(trim(key_));
    const std::optional<bool> is_string = format_.read_key ? format_.read_key(name) : std::nullopt;
    if (!std::exchange(is_first_, false)) out_.arguments(", ");
    out_.arguments('"');
    for (const char byte : name) out_.string_argument(byte);
    out_.arguments("\": ");
    value_.begin(is_string, tools_.find_parameter(name_, name), out_);
    state_ = State::kValue;
  }

  // In a wrapper another call may follow.
  void end_call(bool wrapped) {
    out_.arguments('}');
    after_call_ = wrapped;
    state_ = wrapped && !format_.wrapper_begin.empty() ? State::kWrapped : State::kContent;
  }

  // What is at hand is content, as far as it is not shown, and so is what follows.
  void give_up(char byte) {
    release();
    on_text(byte);
  }
  void give_up(const std::string& marker) {
    release();
    on_content_marker(marker);
  }

  void release() {
    out_.content(std::exchange(held_, {}));
    state_ = State::kContent;
  }

  const XmlCallsFormat& format_;
  ChatOutput& out_;
  const Tools& tools_;
  State state_ = State::kContent;
  std::string held_;  // the call, or the argument, at hand, as long as it is not certain
  std::string name_, key_;
  bool is_first_ = true;
  bool after_call_ = false;  // and the end of what is around it has not come
  ArgumentValue value_;
};

}  // namespace

ToolParser xml_calls(XmlCallsFormat format) {
  ToolParser parser;
  for (const std::string& text :
       {format.wrapper_begin, format.call_begin, format.wrapper_end, format.name_end, format.call_end,
        format.parameter_begin, format.key_end, format.value_begin, format.value_end}) {
    if (!text.empty()) parser.markers.push_back(text);
  }
  parser.call_marker = format.wrapper_begin.empty() ? format.call_begin : format.wrapper_begin;
  parser.structural_tag = [text = format.text](const std::vector<Tool>& tools, const ToolChoice& choice) {
    return calls_format(text, tools, choice);
  };
  const auto shared = std::make_shared<const XmlCallsFormat>(std::move(format));
  parser.make = [markers = std::make_shared<const Markers>(parser.markers), shared](ChatOutput& out,
                                                                                    const Tools& tools) {
    return std::make_unique<XmlCalls>(markers, *shared, out, tools);
  };
  return parser;
}

}  // namespace quire::parsers
