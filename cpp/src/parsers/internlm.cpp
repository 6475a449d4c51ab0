// <|action_start|><|plugin|>
// {"name": "f", "parameters": {"x": 1}}<|action_end|>
#include "parsers/json_calls.h"

namespace quire::parsers {
namespace {

ToolParser internlm() {
  JsonCallsFormat format;
  format.begins = {"<|action_start|><|plugin|>"};
  format.ends = {"<|action_end|>"};
  format.text.begin = "<|action_start|><|plugin|>\n{\"name\": \"";
  format.text.after_name = "\", \"parameters\": ";
  format.text.end = "}<|action_end|>";
  format.text.separator = "\n";
  return json_calls(std::move(format));
}

const bool registered_internlm = register_tool_parser("internlm", internlm());

}  // namespace
}  // namespace quire::parsers
