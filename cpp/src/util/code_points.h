// Tables of code points, sorted, as tools/make_unicode_tables.py writes them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <string_view>

namespace quire {

struct CodePointRange {
  char32_t first;
  char32_t last;  // included
};

inline bool ranges_contain(std::span<const CodePointRange> ranges, char32_t c) {
  const auto after = std::upper_bound(ranges.begin(), ranges.end(), c,
                                      [](char32_t value, const auto& range) { return value < range.first; });
  return after != ranges.begin() && c <= std::prev(after)->last;
}

// `length` characters of a pool, from `offset`.
struct CodePointMapping {
  char32_t code_point;
  uint32_t offset;
  uint32_t length;
};

// What `c` is mapped to; empty when that is `c` itself.
inline std::u32string_view find_mapping(std::span<const CodePointMapping> mappings,
                                        std::span<const char32_t> pool, char32_t c) {
  const auto found =
      std::lower_bound(mappings.begin(), mappings.end(), c,
                       [](const auto& entry, char32_t value) { return entry.code_point < value; });
  if (found == mappings.end() || found->code_point != c) return {};
  return {pool.data() + found->offset, found->length};
}

}  // namespace quire
