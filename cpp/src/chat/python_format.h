// Values as Python prints them, and as JSON.
#pragma once

#include <string>
#include <string_view>

#include "chat/value.h"

namespace quire::chat {

// str(value), which is what {{ value }} writes. Throws InvalidArgument for what prints as an address.
std::string to_text(const Value& value);
// repr(value).
std::string to_representation(const Value& value);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool indented = false;
  std::string indent;  // of one level
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
// json.dumps(value).
std::string to_json(const Value& value, const JsonStyle& style);

// `where` begins the complaint (InvalidArgument) about what is no JSON, is nested too deeply or holds an
// integer beyond 64 bits.
Value parse_json_value(std::string_view text, const std::string& where);

}  // namespace quire::chat
