// Arrays of JSON calls: [{"name": "f", "arguments": {"x": 1}}, ...], after a marker of the model's or by
// themselves.
#include "parsers/json_calls.h"

namespace quire::parsers {
namespace {

ToolParser array(const std::string& begin, const std::string& end = "",
                 const std::string& arguments = "arguments") {
  JsonCallsFormat format;
  if (!begin.empty()) format.begins = {begin};
  if (!end.empty()) format.ends = {end};
  format.bare = begin.empty();
  format.text.first = begin + "[";
  format.text.begin = "{\"name\": \"";
  format.text.after_name = "\", \"" + arguments + "\": ";
  format.text.end = "}";
  format.text.separator = ", ";
  format.text.last = "]" + end;
  return json_calls(std::move(format));
}

// For models without a format of their own: what vLLM makes them write for tool_choice "required".
const bool registered_json = register_tool_parser("json", array("", "", "parameters"));
const bool registered_phi4_mini = register_tool_parser("phi4_mini_json", array("functools"));
const bool registered_granite = register_tool_parser("granite", array("<|tool_call|>"));
const bool registered_hunyuan_a13b =
    register_tool_parser("hunyuan_a13b", array("<tool_calls>", "</tool_calls>"));
const bool registered_jamba = register_tool_parser("jamba", array("<tool_calls>", "</tool_calls>"));

}  // namespace
}  // namespace quire::parsers
