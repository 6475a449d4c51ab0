// Structural tags, as xgrammar reads them: the text of calls with room for names and arguments.
#pragma once

#include <string>
#include <vector>

#include "parsers/tools.h"
#include "quire/chat_parsers.h"

namespace quire::parsers {

// How calls are written: `first` once, calls joined by `separator`, `last` once. A call is `begin`, its name,
// `after_name`, its arguments, `end`.
struct CallText {
  std::string first;
  std::string begin;
  std::string after_name;
  std::string end;
  std::string separator;
  std::string last;
  std::string style = "json";  // of the arguments
};

OrderedJson const_string(const std::string& value);
OrderedJson sequence(std::vector<OrderedJson> elements);
// JSON that fits the schema, with white space for indentation.
OrderedJson value_format(OrderedJson schema);
// Arguments that fit the tool's schema, as xgrammar's "json_schema" writes them.
OrderedJson arguments_format(const Tool& tool, const std::string& style = "json");
// The calls that `choice` asks for, of these tags: one for each tool.
OrderedJson calls_format(const CallText& text, std::vector<OrderedJson> tags, const ToolChoice& choice);
// All of it, for formats that are plain text around arguments.
OrderedJson calls_format(const CallText& text, const std::vector<Tool>& tools, const ToolChoice& choice);

}  // namespace quire::parsers
