// DeepSeek-V3 and R1, <｜tool▁calls▁begin｜> and <｜tool▁calls▁end｜> around calls of the form
//   <｜tool▁call▁begin｜>function<｜tool▁sep｜>f
//   ```json
//   {"x": 1}
//   ```<｜tool▁call▁end｜>
// and V3.1, where they are <｜tool▁call▁begin｜>f<｜tool▁sep｜>{"x": 1}<｜tool▁call▁end｜>.
#include "parsers/named_calls.h"

namespace quire::parsers {
namespace {

constexpr std::string_view kSeparator = "<｜tool▁sep｜>";

NamedCallsFormat common_format() {
  NamedCallsFormat format;
  format.begin = "<｜tool▁call▁begin｜>";
  format.dropped = {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁end｜>"};
  format.text.first = "<｜tool▁calls▁begin｜>";
  format.text.last = "<｜tool▁calls▁end｜>";
  return format;
}

NamedCallsFormat v3() {
  NamedCallsFormat format = common_format();
  format.arguments_begin = "```json";
  format.dropped.push_back("```<｜tool▁call▁end｜>");
  format.read_head = [](std::string_view head) {
    const size_t separator = head.find(kSeparator);
    if (separator == head.npos) return CallHead{};
    return CallHead{std::string(trim(head.substr(separator + kSeparator.size()))), ""};
  };
  format.text.begin = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>";
  format.text.after_name = "\n```json\n";
  format.text.end = "\n```<｜tool▁call▁end｜>";
  format.text.separator = "\n";
  return format;
}

NamedCallsFormat v31() {
  NamedCallsFormat format = common_format();
  format.arguments_begin = kSeparator;
  format.read_head = [](std::string_view head) { return CallHead{std::string(trim(head)), ""}; };
  format.text.begin = format.begin;
  format.text.after_name = kSeparator;
  format.text.end = "<｜tool▁call▁end｜>";
  return format;
}

// The separator is a special token, and has to be in the text.
ToolParser v3_parser() {
  ToolParser parser = named_calls(v3());
  parser.markers.emplace_back(kSeparator);
  return parser;
}

const bool registered_v3 = register_tool_parser("deepseek_v3", v3_parser());
const bool registered_v31 = register_tool_parser("deepseek_v31", named_calls(v31()));

}  // namespace
}  // namespace quire::parsers
