// The formats that write each argument between tags of its own, as plain text: its type is the schema's.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "parsers/chat_parser_registry.h"
#include "parsers/structural_tag.h"

namespace quire::parsers {

struct XmlCallsFormat {
  std::string wrapper_begin, wrapper_end;  // around calls; empty: there are none
  std::string call_begin;                  // a name follows
  std::string name_end;                    // empty: the name goes up to the first tag
  std::string call_end;
  std::string parameter_begin;  // a parameter's name follows
  std::string key_end;
  std::string value_begin;  // after key_end and white space; empty: the value follows at once
  std::string value_end;
  bool needs_wrapper = true;  // a call outside of one is text
  // `key` as the tag has it becomes the name. True: the value is a string, false: it is JSON; nothing: as the
  // schema says.
  std::optional<bool> (*read_key)(std::string& key) = nullptr;
  CallText text;
};

ToolParser xml_calls(XmlCallsFormat format);

}  // namespace quire::parsers
