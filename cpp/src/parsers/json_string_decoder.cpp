#include "parsers/json_string_decoder.h"

#include <string_view>
#include <utility>

#include "util/utf8.h"

namespace quire::parsers {

void JsonStringDecoder::put(char byte, std::string& out) {
  if (state_ == State::kHex) {
    const int digit = byte <= '9' ? byte - '0' : (byte & 0x0F) + 9;
    code_unit_ = code_unit_ << 4 | static_cast<uint32_t>(digit);
    if (--digits_left_ == 0) end_code_unit(out);
    return;
  }
  if (state_ == State::kText && byte == '\\') {
    state_ = State::kEscape;
    return;
  }
  if (state_ == State::kEscape && byte == 'u') {
    state_ = State::kHex;
    digits_left_ = 4;
    code_unit_ = 0;
    return;
  }
  if (std::exchange(first_half_, 0) != 0) append_utf8(U'\uFFFD', out);
  constexpr std::string_view kLetters = "bfnrt", kBytes = "\b\f\n\r\t";
  const size_t at = state_ == State::kEscape ? kLetters.find(byte) : kLetters.npos;
  out += at == kLetters.npos ? byte : kBytes[at];
  state_ = State::kText;
}

void JsonStringDecoder::end_code_unit(std::string& out) {
  state_ = State::kText;
  const bool is_second_half = code_unit_ >= 0xDC00 && code_unit_ < 0xE000;
  const uint32_t first_half = std::exchange(first_half_, 0);
  if (first_half != 0 && is_second_half)
    return append_utf8(0x10000 + ((first_half - 0xD800) << 10) + (code_unit_ - 0xDC00), out);
  if (first_half != 0) append_utf8(U'\uFFFD', out);
  if (code_unit_ >= 0xD800 && code_unit_ < 0xDC00) {
    first_half_ = code_unit_;
  } else {
    append_utf8(is_second_half ? U'\uFFFD' : code_unit_, out);
  }
}

}  // namespace quire::parsers
