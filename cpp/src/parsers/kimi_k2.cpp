// <|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"x":
// 1}<|tool_call_end|>
// <|tool_calls_section_end|>. The head is the call's id.
#include "parsers/named_calls.h"

namespace quire::parsers {
namespace {

const std::string kKimiBegin = "<|tool_call_begin|>";
const std::string kKimiArguments = "<|tool_call_argument_begin|>";

CallHead kimi_head(std::string_view head) {
  head = trim(head);
  CallHead call{std::string(head), std::string(head)};
  constexpr std::string_view kPrefix = "functions.";
  if (call.name.starts_with(kPrefix)) call.name.erase(0, kPrefix.size());
  const size_t colon = call.name.rfind(':');
  if (colon != call.name.npos) call.name.resize(colon);
  return call;
}

ToolParser kimi_k2() {
  NamedCallsFormat format;
  format.begin = kKimiBegin;
  format.arguments_begin = kKimiArguments;
  format.dropped = {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_end|>"};
  format.read_head = kimi_head;
  format.text.first = "<|tool_calls_section_begin|>";
  format.text.last = "<|tool_calls_section_end|>";
  ToolParser parser = named_calls(format);
  parser.structural_tag = [text = format.text](const std::vector<Tool>& tools, const ToolChoice& choice) {
    std::vector<OrderedJson> tags;
    for (const Tool& tool : tools) {
      const OrderedJson content = sequence({{{"type", "regex"}, {"pattern", "\\d{1,4}"}},
                                            const_string(kKimiArguments),
                                            arguments_format(tool)});
      tags.push_back({{"type", "tag"},
                      {"begin", kKimiBegin + "functions." + tool.name + ":"},
                      {"content", content},
                      {"end", "<|tool_call_end|>"}});
    }
    return calls_format(text, std::move(tags), choice);
  };
  return parser;
}

const bool registered_kimi_k2 = register_tool_parser("kimi_k2", kimi_k2());

}  // namespace
}  // namespace quire::parsers
