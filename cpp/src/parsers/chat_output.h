// What parsers write to: collects what is new since it was last taken.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "parsers/stage.h"
#include "quire/chat_parsers.h"

namespace quire::parsers {

// White space that stands between a call and what is beside it belongs to the format: where there is a call,
// content does not begin with white space, nor go on with it after a call. What leads an answer is held back
// until it is known whether a call follows.
class ChatOutput {
 public:
  void reasoning(char byte) { delta_.reasoning += byte; }
  void reasoning(std::string_view text) { delta_.reasoning += text; }
  void content(char byte);
  void content(std::string_view text) {
    for (const char byte : text) content(byte);
  }

  // Begins the next call. An empty `id` is replaced by one of vLLM's kind.
  void begin_call(std::string name, std::string id = "");
  // Text of the arguments of the call that was begun last.
  void arguments(char byte) { call().arguments += byte; }
  void arguments(std::string_view text) { call().arguments += text; }
  // A byte of a string's text, as JSON writes it.
  void string_argument(char byte);

  void finish();
  ChatDelta take();
  bool has_content() const { return has_content_; }
  bool has_reasoning() const { return has_reasoning_ || !delta_.reasoning.empty(); }

 private:
  ToolCallDelta& call();

  ChatDelta delta_;
  std::string leading_space_;
  bool has_content_ = false;
  bool has_reasoning_ = false;
  bool at_edge_ = true;  // nothing but white space since the beginning, or since a call
  int32_t num_calls_ = 0;
};

// "chatcmpl-tool-" and 32 random digits.
std::string make_tool_call_id();
// Nine letters and digits, as Mistral's templates demand.
std::string make_mistral_tool_call_id();

}  // namespace quire::parsers
