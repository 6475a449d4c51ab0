// GLM 4.5, and 4.7 without the line breaks:
// <tool_call>f
// <arg_key>x</arg_key>
// <arg_value>1</arg_value>
// </tool_call>
#include "parsers/xml_calls.h"

namespace quire::parsers {
namespace {

ToolParser glm(const std::string& line_break) {
  XmlCallsFormat format;
  format.call_begin = "<tool_call>";
  format.call_end = "</tool_call>";
  format.parameter_begin = "<arg_key>";
  format.key_end = "</arg_key>";
  format.value_begin = "<arg_value>";
  format.value_end = "</arg_value>";
  format.needs_wrapper = false;
  format.text.begin = "<tool_call>";
  format.text.end = "</tool_call>";
  format.text.after_name = line_break;
  format.text.separator = line_break;
  format.text.style = "glm_xml";
  return xml_calls(std::move(format));
}

const bool registered_glm45 = register_tool_parser("glm45", glm("\n"));
const bool registered_glm47 = register_tool_parser("glm47", glm(""));

}  // namespace
}  // namespace quire::parsers
