// Python's literals as they come, byte by byte, turned into JSON.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "parsers/chat_output.h"
#include "parsers/json_call.h"

namespace quire::parsers {

// Strings (also in three quotes), numbers, True, False, None and JSON's words for them, lists, and
// dictionaries with strings for keys; which nest less than kMaxJsonDepth deep: the arguments are around them.
// Line breaks within a string are taken as they are.
class PythonLiteral {
 public:
  Progress put(char byte, ChatOutput& out);
  // Read, but not passed on: a number, or a name.
  std::string_view held() const {
    return state_ == State::kWord ? std::string_view(word_) : std::string_view();
  }
  bool in_string() const { return state_ >= State::kStringBegin && state_ <= State::kOctal; }

 private:
  enum class State : uint8_t {
    kValue,
    kFirst,  // after a bracket or a comma: an element, or the end
    kColon,
    kAfterValue,
    kWord,
    kStringBegin,
    kQuotes,  // two at the beginning: an empty string, or the first of three
    kString,
    kEscape,
    kHex,
    kOctal,
    kDone,
  };

  Progress on_value(char byte, ChatOutput& out);
  Progress on_first(char byte, ChatOutput& out);
  Progress on_after_value(char byte, ChatOutput& out);
  Progress on_word(char byte, ChatOutput& out);
  Progress on_string(char byte, ChatOutput& out);
  Progress on_escape(char byte, ChatOutput& out);
  bool add_code_point(ChatOutput& out);
  void begin_element(ChatOutput& out);
  Progress end_value();
  Progress end_string(ChatOutput& out);

  State state_ = State::kValue;
  std::vector<bool> open_;  // is a dictionary
  bool comma_ = false;      // before the next element
  bool in_key_ = false;
  std::string word_;  // a number, or a name
  char quote_ = '"';
  bool triple_ = false;
  uint8_t quotes_ = 0;       // that may end a string of three
  uint8_t digits_left_ = 0;  // of an escape
  uint32_t code_point_ = 0;
};

}  // namespace quire::parsers
