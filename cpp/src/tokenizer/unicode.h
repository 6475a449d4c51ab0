// UTF-8 and sets of code points.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/unicode_tables.h"

namespace quire::unicode {

inline constexpr char32_t kMaxCodePoint = 0x10FFFF;

// The offset of the first byte that is not valid UTF-8, or npos.
size_t find_invalid_utf8(std::string_view text);

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

void append_utf8(char32_t code_point, std::string& out);

std::u32string to_utf32(std::string_view text);

// A set of code points, kept as sorted ranges that do not touch.
class CodePointSet {
 public:
  CodePointSet() = default;
  explicit CodePointSet(std::span<const CodePointRange> ranges);  // in any order, overlapping or not

  static CodePointSet of(char32_t code_point);
  // A general category ("Lu"), or all that begin with a letter ("L"). Nothing for any other name.
  static bool from_category_name(std::string_view name, CodePointSet& out);

  const std::vector<CodePointRange>& ranges() const { return ranges_; }
  bool empty() const { return ranges_.empty(); }
  bool contains(char32_t code_point) const;

  CodePointSet united_with(const CodePointSet& other) const;
  CodePointSet complement() const;
  bool intersects(const CodePointSet& other) const;

 private:
  std::vector<CodePointRange> ranges_;
};

// A CodePointSet to be asked often: two loads a question, one for ASCII.
class CodePointBitmap {
 public:
  CodePointBitmap() : CodePointBitmap(CodePointSet()) {}
  explicit CodePointBitmap(const CodePointSet& set);

  bool contains(char32_t c) const {
    if (c < 128) return ascii_[c >> 6] >> (c & 63) & 1;
    return blocks_[block_of_[c >> 8] * 4 + (c >> 6 & 3)] >> (c & 63) & 1;
  }

  // The end of the run of members that starts at text[pos], at most `max_characters` long.
  size_t skip_members(std::string_view text, size_t pos, size_t max_characters = SIZE_MAX) const;

 private:
  uint64_t ascii_[2] = {0, 0};
  std::vector<uint16_t> block_of_;  // by code point / 256; equal blocks are shared
  std::vector<uint64_t> blocks_;    // 256 bits each
};

}  // namespace quire::unicode
