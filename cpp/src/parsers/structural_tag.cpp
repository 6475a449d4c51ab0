#include "parsers/structural_tag.h"

#include <utility>

namespace quire::parsers {

OrderedJson const_string(const std::string& value) { return {{"type", "const_string"}, {"value", value}}; }

OrderedJson sequence(std::vector<OrderedJson> elements) {
  if (elements.size() == 1) return std::move(elements.front());
  return {{"type", "sequence"}, {"elements", std::move(elements)}};
}

OrderedJson value_format(OrderedJson schema) {
  // Enough for deep indentation. Without a bound a model that has begun a line may go on with blank ones for
  // ever.
  constexpr int kMaxWhitespace = 24;
  return {
      {"type", "json_schema"}, {"json_schema", std::move(schema)}, {"max_whitespace_cnt", kMaxWhitespace}};
}

OrderedJson arguments_format(const Tool& tool, const std::string& style) {
  OrderedJson format = value_format(tool.parameters);
  if (style != "json") format["style"] = style;
  return format;
}

OrderedJson calls_format(const CallText& text, std::vector<OrderedJson> tags, const ToolChoice& choice) {
  std::vector<OrderedJson> elements;
  if (!text.first.empty()) elements.push_back(const_string(text.first));
  elements.push_back({{"type", "tags_with_separator"},
                      {"tags", std::move(tags)},
                      {"separator", text.separator},
                      {"at_least_one", true},
                      {"stop_after_first", !choice.name.empty() || !choice.parallel_tool_calls}});
  if (!text.last.empty()) elements.push_back(const_string(text.last));
  return sequence(std::move(elements));
}

OrderedJson calls_format(const CallText& text, const std::vector<Tool>& tools, const ToolChoice& choice) {
  std::vector<OrderedJson> tags;
  for (const Tool& tool : tools) {
    tags.push_back({{"type", "tag"},
                    {"begin", text.begin + tool.name + text.after_name},
                    {"content", arguments_format(tool, text.style)},
                    {"end", text.end}});
  }
  return calls_format(text, std::move(tags), choice);
}

}  // namespace quire::parsers
