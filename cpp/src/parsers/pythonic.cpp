// [f(x=1, y="a"), g()], which is all of the answer; Llama 4 may write <|python_start|> before it and
// <|python_end|> after it. LFM2 has such a list between markers in its text, and OLMo 3 a call in each line
// between them.
#include <algorithm>
#include <memory>
#include <utility>

#include "parsers/chat_parser_registry.h"
#include "parsers/python_literal.h"
#include "parsers/structural_tag.h"

namespace quire::parsers {
namespace {

bool is_identifier(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}
bool begins_identifier(char c) { return is_identifier(c) && (c < '0' || c > '9'); }

struct PythonicFormat {
  std::string begin, end;    // of the calls; may be empty
  bool needs_begin = false;  // what is not between them is content
  bool lines = false;        // a call in each line, without brackets and commas
};

class PythonicCalls final : public MarkedStage {
 public:
  PythonicCalls(std::shared_ptr<const Markers> markers, const PythonicFormat& format, ChatOutput& out)
      : MarkedStage(std::move(markers)), lines_(format.lines), out_(out) {
    if (format.needs_begin) state_ = State::kContent;
  }

 private:
  enum Marker { kBegin, kEnd };
  enum class State {
    kStart,
    kContent,
    kFunction,       // a name, or the end of the list
    kFirstArgument,  // a name, or the end of the call
    kKey,
    kValue,
    kAfterValue,
    kAfterCall
  };

  void on_text(char byte) override {
    if (held_.size() >= kMaxHeldBytes) return give_up(byte);
    switch (state_) {
      case State::kStart:
        if (byte == '[') return begin_list("[");
        if (!is_space(byte)) state_ = State::kContent;
        [[fallthrough]];
      case State::kContent: return out_.content(byte);
      case State::kFunction: return on_function(byte);
      case State::kFirstArgument:
        if (byte == ')') return end_call();
        if (begins_identifier(byte)) {
          key_.clear();
          state_ = State::kKey;
          return on_key(byte);
        }
        return hold_space(byte);
      case State::kKey: return on_key(byte);
      case State::kValue: return on_value(byte);
      case State::kAfterValue:
        if (byte == ')') return end_call();
        if (byte != ',') return hold_space(byte);
        held_ = byte;
        state_ = State::kFirstArgument;
        return;
      case State::kAfterCall:
        if (lines_ && begins_identifier(byte)) {
          begin_function("");
          on_function(byte);
        } else if (byte == ',' && !lines_) {
          begin_function(",");
        } else if (byte == ']' && !lines_) {
          state_ = State::kContent;
        } else {
          hold_space(byte);
        }
    }
  }

  void on_marker(int32_t marker) override {
    if (state_ == State::kValue && value_.in_string()) {
      for (const char byte : markers().text(marker)) on_text(byte);
      return;
    }
    release();
    state_ = marker == kBegin ? State::kStart : State::kContent;
    if (marker == kBegin && lines_) begin_list(markers().text(marker));
  }

  void on_end() override {
    if (!begun_) release();
  }

  void begin_list(std::string text) {
    num_calls_ = 0;
    begin_function(std::move(text));
  }

  void begin_function(std::string text) {
    held_ = std::move(text);
    name_.clear();
    state_ = State::kFunction;
  }

  void on_function(char byte) {
    if (is_identifier(byte) || (byte == '.' && !name_.empty())) {
      const bool fits =
          ends_name_ == false && name_.size() < kMaxNameBytes && (!name_.empty() || begins_identifier(byte));
      if (!fits) return give_up(byte);
      name_ += byte;
      held_ += byte;
    } else if (byte == '(' && !name_.empty() && name_.back() != '.') {
      held_ += byte;
      begun_ = false;
      ends_name_ = false;
      state_ = State::kFirstArgument;
    } else if (byte == ']' && num_calls_ > 0 && name_.empty() && !lines_) {
      held_.clear();
      state_ = State::kContent;
    } else {
      ends_name_ = !name_.empty();
      hold_space(byte);
    }
  }

  void on_key(char byte) {
    if (is_identifier(byte) && key_.size() < kMaxNameBytes && !ends_name_) {
      key_ += byte;
      held_ += byte;
    } else if (byte == '=') {
      ends_name_ = false;
      const bool is_first = !begun_;
      begin_call();
      held_.clear();
      out_.arguments(is_first ? "\"" : ", \"");
      out_.arguments(key_);
      out_.arguments("\": ");
      value_ = {};
      state_ = State::kValue;
    } else {
      ends_name_ = true;
      hold_space(byte);
    }
  }

  void on_value(char byte) {
    const Progress progress = value_.put(byte, out_);
    if (progress == Progress::kBad) return give_up(byte);
    if (progress == Progress::kMore) return;
    state_ = State::kAfterValue;
    if (progress == Progress::kEnded) on_text(byte);
  }

  // Now it is certain that there is a call.
  void begin_call() {
    if (begun_) return;
    begun_ = true;
    ++num_calls_;
    out_.begin_call(name_);
    out_.arguments('{');
  }

  void end_call() {
    begin_call();
    held_.clear();
    out_.arguments('}');
    begun_ = false;
    state_ = State::kAfterCall;
  }

  void hold_space(char byte) {
    if (!is_space(byte)) return give_up(byte);
    if (!held_.empty()) held_ += byte;
  }

  // What is at hand is content, as far as it is not shown, and so is what follows.
  void give_up(char byte) {
    release();
    state_ = State::kContent;
    on_text(byte);
  }

  void release() {
    ends_name_ = false;
    if (state_ == State::kValue) held_ = value_.held();
    out_.content(std::exchange(held_, {}));
  }

  const bool lines_;
  ChatOutput& out_;
  State state_ = State::kStart;
  std::string held_;  // the call at hand, as long as it is not certain
  std::string name_, key_;
  bool ends_name_ = false;  // white space has followed the name, or the key
  bool begun_ = false;
  int num_calls_ = 0;
  PythonLiteral value_;
};

// (x=1, y="a" by the schema's properties: those that are required, then the others, each in its order.
OrderedJson keyword_arguments(const Tool& tool) {
  std::vector<OrderedJson> required, optional;
  std::vector<std::string> required_keys, optional_keys;
  const OrderedJson properties = tool.parameters.value("properties", OrderedJson::object());
  const OrderedJson names = tool.parameters.value("required", OrderedJson::array());
  for (const auto& [key, schema] : properties.items()) {
    OrderedJson value = schema;
    // What the schema refers to goes with it.
    for (const char* definitions : {"$defs", "definitions"}) {
      if (value.is_object() && tool.parameters.contains(definitions))
        value[definitions] = tool.parameters[definitions];
    }
    const bool is_required = std::find(names.begin(), names.end(), key) != names.end();
    (is_required ? required : optional).push_back(value_format(std::move(value)));
    (is_required ? required_keys : optional_keys).push_back(key);
  }
  std::vector<OrderedJson> elements = {const_string("(")};
  const auto add_optional_after = [&](std::vector<OrderedJson>& to, size_t first) {
    for (size_t i = first; i < optional.size(); ++i)
      to.push_back({{"type", "optional"},
                    {"content", sequence({const_string(", " + optional_keys[i] + "="), optional[i]})}});
  };
  for (size_t i = 0; i < required.size(); ++i) {
    elements.push_back(const_string((i > 0 ? ", " : "") + required_keys[i] + "="));
    elements.push_back(required[i]);
  }
  if (!required.empty()) {
    add_optional_after(elements, 0);
    return sequence(std::move(elements));
  }
  // Without any that is required, each may be the first.
  std::vector<OrderedJson> choices;
  for (size_t i = 0; i < optional.size(); ++i) {
    std::vector<OrderedJson> choice = {const_string(optional_keys[i] + "="), optional[i]};
    add_optional_after(choice, i + 1);
    choices.push_back(sequence(std::move(choice)));
  }
  if (!choices.empty())
    elements.push_back(
        {{"type", "optional"}, {"content", {{"type", "or"}, {"elements", std::move(choices)}}}});
  return sequence(std::move(elements));
}

ToolParser pythonic(PythonicFormat format) {
  ToolParser parser;
  if (!format.begin.empty()) parser.markers = {format.begin, format.end};
  parser.call_marker = format.begin;
  parser.make = [markers = std::make_shared<const Markers>(parser.markers), format](ChatOutput& out,
                                                                                    const Tools&) {
    return std::make_unique<PythonicCalls>(markers, format, out);
  };
  parser.structural_tag = [format](const std::vector<Tool>& tools, const ToolChoice& choice) {
    std::vector<OrderedJson> tags;
    for (const Tool& tool : tools) {
      tags.push_back(
          {{"type", "tag"}, {"begin", tool.name}, {"content", keyword_arguments(tool)}, {"end", ")"}});
    }
    CallText text;
    if (format.needs_begin) text.first = format.begin;
    text.first += format.lines ? "\n" : "[";
    text.separator = format.lines ? "\n" : ", ";
    text.last = format.lines ? "\n" : "]";
    if (format.needs_begin) text.last += format.end;
    return calls_format(text, std::move(tags), choice);
  };
  return parser;
}

const bool registered_pythonic = register_tool_parser("pythonic", pythonic({}));
const bool registered_llama4_pythonic =
    register_tool_parser("llama4_pythonic", pythonic({.begin = "<|python_start|>", .end = "<|python_end|>"}));
const bool registered_lfm2 = register_tool_parser(
    "lfm2", pythonic({.begin = "<|tool_call_start|>", .end = "<|tool_call_end|>", .needs_begin = true}));
const bool registered_olmo3 = register_tool_parser(
    "olmo3",
    pythonic({.begin = "<function_calls>", .end = "</function_calls>", .needs_begin = true, .lines = true}));

}  // namespace
}  // namespace quire::parsers
