// One argument that is written as plain text between tags, turned into JSON as it comes.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "parsers/chat_output.h"
#include "parsers/tools.h"

namespace quire::parsers {

// A line break after the first tag and one before the last belong to the tags. What can only be a string is
// passed on at once; other values are held back until they are whole, because their text tells their type.
class ArgumentValue {
 public:
  // `is_string`: what the tags say; nothing: the schema does, which may be null. Borrows the schema.
  void begin(std::optional<bool> is_string, const OrderedJson* schema, ChatOutput& out);
  void put(char byte, ChatOutput& out);
  void end(ChatOutput& out);

 private:
  void stream(char byte, ChatOutput& out);

  bool streams_ = false;
  bool is_json_ = false;
  bool at_begin_ = true;
  bool line_break_ = false;  // held back: it may be the last
  std::string held_;
  const OrderedJson* schema_ = nullptr;
};

}  // namespace quire::parsers
