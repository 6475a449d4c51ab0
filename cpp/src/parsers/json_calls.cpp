#include "parsers/json_calls.h"

#include <memory>
#include <optional>
#include <utility>

#include "parsers/json_call.h"

namespace quire::parsers {
namespace {

class JsonCalls final : public MarkedStage {
 public:
  JsonCalls(std::shared_ptr<const Markers> markers, const JsonCallsFormat& format, ChatOutput& out)
      : MarkedStage(std::move(markers)),
        num_begins_(format.begins.size()),
        bare_(format.bare),
        make_id_(format.make_id),
        out_(out) {}

 private:
  enum class State {
    kContent,
    kBegun,   // after a marker or a bracket: a call, or an array of them, should follow
    kObject,  // within a call
    kOther,   // within an object that is none: there are no calls in it
    kBetween  // after a call of an array, or one that stands by itself
  };

  void on_text(char byte) override {
    switch (state_) {
      case State::kContent: return on_content(byte);
      case State::kBegun: return on_begun(byte);
      case State::kObject: return on_object(byte);
      case State::kOther: return on_other(byte);
      case State::kBetween: return on_between(byte);
    }
  }

  void on_marker(int32_t marker) override {
    const std::string& text = markers().text(marker);
    if (object_ && object_->in_string()) {
      for (const char byte : text) on_text(byte);
      return;
    }
    // Whatever is at hand ends here.
    release();
    state_ = State::kContent;
    if (static_cast<size_t>(marker) < num_begins_) {
      held_ = text;
      in_array_ = false;
      after_call_ = false;
      state_ = State::kBegun;
    } else if (!std::exchange(after_call_, false)) {
      out_.content(text);  // it ends nothing
    }
  }

  void on_end() override {
    if (state_ != State::kBetween) release();
  }

  void on_content(char byte) {
    if (!bare_ || (byte != '{' && byte != '[')) return out_.content(byte);
    in_array_ = byte == '[';
    if (!in_array_) return begin_object(byte);
    held_ = byte;
    state_ = State::kBegun;
  }

  void on_begun(char byte) {
    if (byte == '{') return begin_object(byte);
    const bool opens = byte == '[' && !in_array_;
    if (!opens && (!is_space(byte) || held_.size() >= kMaxHeldBytes)) return give_up(byte);
    in_array_ = in_array_ || opens;
    held_ += byte;
  }

  void begin_object(char byte) {
    state_ = State::kObject;
    object_.emplace(/*strict=*/bare_);
    if (make_id_ != nullptr) object_->set_id(make_id_());
    on_object(byte);
  }

  void on_object(char byte) {
    const Progress progress = object_->put(byte, out_);
    if (progress == Progress::kBad) return give_up(byte);
    if (progress == Progress::kOther) {
      out_.content(std::exchange(held_, {}));
      out_.content(object_->held());
      state_ = object_->is_done() ? State::kContent : State::kOther;
      if (object_->is_done()) object_.reset();
      return;
    }
    if (object_->has_begun()) {
      held_.clear();
      after_call_ = true;
    }
    if (progress == Progress::kMore) return;
    object_.reset();
    state_ = in_array_ || bare_ ? State::kBetween : State::kContent;
  }

  void on_other(char byte) {
    const Progress progress = object_->skip(byte);
    if (progress != Progress::kMore) state_ = State::kContent;
    if (progress == Progress::kBad) {
      object_.reset();
      return on_text(byte);
    }
    out_.content(byte);
    if (progress == Progress::kDone) object_.reset();
  }

  void on_between(char byte) {
    if (is_space(byte)) {
      if (!held_.empty() && held_.size() < kMaxHeldBytes) held_ += byte;
      return;
    }
    if (byte == '{') return begin_object(byte);
    if (in_array_ && byte == ']') {
      in_array_ = false;
      state_ = bare_ ? State::kBetween : State::kContent;
      return;
    }
    if ((byte == ',' || byte == ';') && held_.empty()) {
      held_ = byte;
      return;
    }
    give_up(byte);
  }

  // It was no call: it is content, and so is what follows.
  void give_up(char byte) {
    release();
    state_ = State::kContent;
    on_text(byte);
  }

  void release() {
    out_.content(std::exchange(held_, {}));
    if (state_ == State::kObject && !object_->has_begun()) out_.content(object_->held());
    object_.reset();
  }

  const size_t num_begins_;
  const bool bare_;
  std::string (*const make_id_)();
  ChatOutput& out_;
  State state_ = State::kContent;
  bool in_array_ = false;
  bool after_call_ = false;  // whose end has not come
  std::string held_;         // what stands before the call at hand
  std::optional<CallObjectReader> object_;
};

}  // namespace

ToolParser json_calls(JsonCallsFormat format) {
  ToolParser parser;
  parser.markers = format.begins;
  if (!format.begins.empty()) parser.call_marker = format.begins.front();
  parser.markers.insert(parser.markers.end(), format.ends.begin(), format.ends.end());
  parser.make = [markers = std::make_shared<const Markers>(parser.markers), format](ChatOutput& out,
                                                                                    const Tools&) {
    return std::make_unique<JsonCalls>(markers, format, out);
  };
  parser.structural_tag = [text = format.text](const std::vector<Tool>& tools, const ToolChoice& choice) {
    return calls_format(text, tools, choice);
  };
  return parser;
}

}  // namespace quire::parsers
