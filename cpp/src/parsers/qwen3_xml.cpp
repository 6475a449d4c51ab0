// Qwen3-Coder, Step-3.5, and Seed-OSS with other tags around its calls:
// <tool_call>
// <function=f>
// <parameter=x>
// 1
// </parameter>
// </function>
// </tool_call>
#include "parsers/xml_calls.h"

namespace quire::parsers {
namespace {

ToolParser functions_in(const std::string& wrapper_begin, const std::string& wrapper_end) {
  XmlCallsFormat format;
  format.wrapper_begin = wrapper_begin;
  format.wrapper_end = wrapper_end;
  format.call_begin = "<function=";
  format.name_end = ">";
  format.call_end = "</function>";
  format.parameter_begin = "<parameter=";
  format.key_end = ">";
  format.value_end = "</parameter>";
  format.needs_wrapper = false;
  format.text.begin = wrapper_begin + "\n<function=";
  format.text.after_name = ">\n";
  format.text.end = "\n</function>\n" + wrapper_end;
  format.text.separator = "\n";
  format.text.style = "qwen_xml";
  return xml_calls(std::move(format));
}

const bool registered_qwen3_coder =
    register_tool_parser("qwen3_coder", functions_in("<tool_call>", "</tool_call>"));
const bool registered_qwen3_xml =
    register_tool_parser("qwen3_xml", functions_in("<tool_call>", "</tool_call>"));
const bool registered_mimo = register_tool_parser("mimo", functions_in("<tool_call>", "</tool_call>"));
const bool registered_step3p5 = register_tool_parser("step3p5", functions_in("<tool_call>", "</tool_call>"));
const bool registered_seed_oss =
    register_tool_parser("seed_oss", functions_in("<seed:tool_call>", "</seed:tool_call>"));

}  // namespace
}  // namespace quire::parsers
