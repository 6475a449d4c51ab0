// Sets of code points.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/unicode_tables.h"
#include "util/utf8.h"

namespace quire::unicode {

inline constexpr char32_t kMaxCodePoint = 0x10FFFF;

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
