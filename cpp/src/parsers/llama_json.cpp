// Llama 3 and 4: {"name": "f", "parameters": {"x": 1}}; {"name": ...}, perhaps after <|python_tag|>.
#include "parsers/json_calls.h"

namespace quire::parsers {
namespace {

ToolParser llama_json() {
  JsonCallsFormat format;
  format.begins = {"<|python_tag|>"};
  format.bare = true;
  format.text.begin = "{\"name\": \"";
  format.text.after_name = "\", \"parameters\": ";
  format.text.end = "}";
  format.text.separator = "; ";
  return json_calls(std::move(format));
}

const bool registered_llama3 = register_tool_parser("llama3_json", llama_json());
const bool registered_llama4 = register_tool_parser("llama4_json", llama_json());

}  // namespace
}  // namespace quire::parsers
