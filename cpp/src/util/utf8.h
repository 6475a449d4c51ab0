// Characters of UTF-8, one at a time.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "quire/utf8.h"

namespace quire {

// The character at text[pos], which advances past it. The text must be valid UTF-8 and pos < size.
inline char32_t decode_utf8(std::string_view text, size_t& pos) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[pos + i]); };
  const char32_t lead = byte(0);
  if (lead < 0x80) return pos += 1, lead;
  if (lead < 0xE0) {
    const char32_t c = (lead & 0x1F) << 6 | (byte(1) & 0x3F);
    return pos += 2, c;
  }
  if (lead < 0xF0) {
    const char32_t c = (lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    return pos += 3, c;
  }
  const char32_t c = (lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
  return pos += 4, c;
}

// Moves `pos`, which is not 0, back to the start of the character before it.
inline size_t previous_utf8(std::string_view text, size_t pos) {
  do {
    --pos;
  } while ((static_cast<unsigned char>(text[pos]) & 0xC0) == 0x80);
  return pos;
}

// As much of a text as a message should have.
inline std::string shorten_text(const std::string& text) {
  constexpr size_t kMaxBytes = 80;
  return text.size() <= kMaxBytes ? text : text.substr(0, previous_utf8(text, kMaxBytes - 2)) + "...";
}

void append_utf8(char32_t code_point, std::string& out);

}  // namespace quire
