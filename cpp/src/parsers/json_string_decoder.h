// What a JSON string holds, as it comes.
#pragma once

#include <cstdint>
#include <string>

namespace quire::parsers {

// Halves of surrogate pairs that stand alone become U+FFFD.
class JsonStringDecoder {
 public:
  // A byte between the quotes, which must be valid there. Appends what it completed.
  void put(char byte, std::string& out);

 private:
  enum class State : uint8_t { kText, kEscape, kHex };
  void end_code_unit(std::string& out);

  State state_ = State::kText;
  uint8_t digits_left_ = 0;
  uint32_t code_unit_ = 0;
  uint32_t first_half_ = 0;  // of a pair; 0: none
};

}  // namespace quire::parsers
