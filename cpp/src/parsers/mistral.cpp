// Before version 11 of its tokenizer [TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}}, ...], since then
// [TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]g..., where [CALL_ID] and an id may follow the name. Each answer
// shows which it is.
#include <utility>

#include "parsers/json_calls.h"
#include "parsers/named_calls.h"

namespace quire::parsers {
namespace {

const std::string kToolCalls = "[TOOL_CALLS]";
constexpr std::string_view kArgs = "[ARGS]", kCallId = "[CALL_ID]";

CallHead mistral_head(std::string_view head) {
  if (const size_t args = head.find(kArgs); args != head.npos) head = head.substr(0, args);
  CallHead call;
  const size_t id = head.find(kCallId);
  call.name = trim(head.substr(0, id));
  if (id != head.npos) call.id = trim(head.substr(id + kCallId.size()));
  if (call.id.empty()) call.id = make_mistral_tool_call_id();
  return call;
}

class MistralCalls final : public MarkedStage {
 public:
  MistralCalls(std::shared_ptr<const Markers> markers, std::unique_ptr<Stage> array,
               std::unique_ptr<Stage> named, ChatOutput& out)
      : MarkedStage(std::move(markers)), array_(std::move(array)), named_(std::move(named)), out_(out) {}

 private:
  void on_text(char byte) override {
    if (form_ != nullptr) return form_->put(byte);
    if (held_.empty()) return out_.content(byte);
    if (is_space(byte) && held_.size() < kMaxHeldBytes) {
      held_ += byte;
      return;
    }
    form_ = byte == '[' || byte == '{' ? array_.get() : named_.get();
    form_->put_all(std::exchange(held_, {}));
    form_->put(byte);
  }
  void on_marker(int32_t) override {
    if (form_ != nullptr) return form_->put_all(kToolCalls);
    out_.content(std::exchange(held_, kToolCalls));
  }
  void on_end() override {
    out_.content(held_);
    if (form_ != nullptr) form_->finish();
  }

  std::unique_ptr<Stage> array_, named_;
  ChatOutput& out_;
  Stage* form_ = nullptr;  // once it is known
  std::string held_;       // the marker and white space after it
};

ToolParser mistral() {
  JsonCallsFormat array;
  array.begins = {kToolCalls};
  array.make_id = make_mistral_tool_call_id;
  NamedCallsFormat named;
  named.begin = kToolCalls;
  named.read_head = mistral_head;
  named.text.begin = kToolCalls;
  named.text.after_name = kArgs;
  ToolParser parser = named_calls(named);
  parser.markers = {kToolCalls, std::string(kArgs), std::string(kCallId)};
  parser.make = [markers = std::make_shared<const Markers>(std::vector<std::string>{kToolCalls}), named,
                 array = json_calls(array)](ChatOutput& out, const Tools& tools) {
    return std::make_unique<MistralCalls>(markers, array.make(out, tools), make_named_calls(named, out), out);
  };
  return parser;
}

const bool registered_mistral = register_tool_parser("mistral", mistral());

}  // namespace
}  // namespace quire::parsers
