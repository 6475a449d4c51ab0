// <tool_call>
// {"name": "f", "arguments": {"x": 1}}
// </tool_call>
#include "parsers/json_calls.h"

namespace quire::parsers {
namespace {

ToolParser tagged(const std::string& begin, const std::string& end) {
  JsonCallsFormat format;
  format.begins = {begin};
  if (!end.empty()) format.ends = {end};
  format.text.begin = begin + "\n{\"name\": \"";
  format.text.after_name = "\", \"arguments\": ";
  format.text.end = end.empty() ? "}" : "}\n" + end;
  format.text.separator = "\n";
  return json_calls(std::move(format));
}

const bool registered_hermes = register_tool_parser("hermes", tagged("<tool_call>", "</tool_call>"));
const bool registered_ernie45 = register_tool_parser("ernie45", tagged("<tool_call>", "</tool_call>"));
const bool registered_granite4 = register_tool_parser("granite4", tagged("<tool_call>", "</tool_call>"));
const bool registered_granite_20b_fc = register_tool_parser("granite-20b-fc", tagged("<function_call>", ""));
const bool registered_longcat =
    register_tool_parser("longcat", tagged("<longcat_tool_call>", "</longcat_tool_call>"));

}  // namespace
}  // namespace quire::parsers
