// MiniMax-M2:
// <minimax:tool_call>
// <invoke name="f">
// <parameter name="x">1</parameter>
// </invoke>
// </minimax:tool_call>
// and DeepSeek-V3.2, whose parameters say whether they are strings:
// <｜DSML｜function_calls>
// <｜DSML｜invoke name="f">
// <｜DSML｜parameter name="x" string="false">1</｜DSML｜parameter>
// </｜DSML｜invoke>
// </｜DSML｜function_calls>
#include "parsers/xml_calls.h"

namespace quire::parsers {
namespace {

ToolParser invokes(const std::string& wrapper, const std::string& prefix, const std::string& style) {
  XmlCallsFormat format;
  format.wrapper_begin = "<" + wrapper + ">";
  format.wrapper_end = "</" + wrapper + ">";
  format.call_begin = "<" + prefix + "invoke name=\"";
  format.name_end = "\">";
  format.call_end = "</" + prefix + "invoke>";
  format.parameter_begin = "<" + prefix + "parameter name=\"";
  format.key_end = "\">";
  format.value_end = "</" + prefix + "parameter>";
  format.read_key = [](std::string& key) -> std::optional<bool> {
    const std::string attribute = "\" string=\"";
    const size_t at = key.find(attribute);
    if (at == key.npos) return std::nullopt;
    const bool is_string = key.compare(at + attribute.size(), key.npos, "true") == 0;
    key.resize(at);
    return is_string;
  };
  format.text.first = format.wrapper_begin + "\n";
  format.text.begin = format.call_begin;
  format.text.after_name = "\">\n";
  format.text.end = format.call_end + "\n";
  format.text.last = format.wrapper_end;
  format.text.style = style;
  return xml_calls(std::move(format));
}

const bool registered_minimax_m2 =
    register_tool_parser("minimax_m2", invokes("minimax:tool_call", "", "minimax_xml"));
const bool registered_deepseek_v32 =
    register_tool_parser("deepseek_v32", invokes("｜DSML｜function_calls", "｜DSML｜", "deepseek_xml"));
const bool registered_deepseek_v4 =
    register_tool_parser("deepseek_v4", invokes("｜DSML｜tool_calls", "｜DSML｜", "deepseek_xml"));

}  // namespace
}  // namespace quire::parsers
