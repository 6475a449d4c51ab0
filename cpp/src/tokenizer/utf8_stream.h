// Bytes that arrive in pieces, handed on as whole UTF-8 characters.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace quire::text {

// What is not UTF-8 becomes U+FFFD, one for each longest prefix of a character that could not go on (as the
// WHATWG and Rust decoders do). Holds back at most three bytes.
class Utf8Stream {
 public:
  void append(std::string_view bytes, std::string& out);
  // What is held back will not be completed.
  void finish(std::string& out);

 private:
  // Whether `byte` can come next in the character held back, of which there is at least one byte.
  bool continues(unsigned char byte) const;

  char held_[4] = {};
  uint8_t num_held_ = 0;
  uint8_t length_ = 0;  // of the character held back, once it is whole
};

}  // namespace quire::text
