#include "tokenizer/unicode.h"

#include <algorithm>
#include <array>
#include <map>

namespace quire::unicode {
namespace {

constexpr const char* kCategoryNames[] = {
    "Cn", "Cc", "Cf", "Co", "Cs", "Ll", "Lm", "Lo", "Lt", "Lu", "Mc", "Me", "Mn", "Nd", "Nl",
    "No", "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "Sc", "Sk", "Sm", "So", "Zl", "Zp", "Zs",
};

}  // namespace

std::u32string to_utf32(std::string_view text) {
  std::u32string characters;
  characters.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) characters += decode_utf8(text, pos);
  return characters;
}

CodePointSet::CodePointSet(std::span<const CodePointRange> ranges) : ranges_(ranges.begin(), ranges.end()) {
  std::sort(ranges_.begin(), ranges_.end(), [](auto& a, auto& b) { return a.first < b.first; });
  size_t kept = 0;
  for (const CodePointRange& range : ranges_) {
    if (kept > 0 && range.first <= ranges_[kept - 1].last + 1) {
      ranges_[kept - 1].last = std::max(ranges_[kept - 1].last, range.last);
    } else {
      ranges_[kept++] = range;
    }
  }
  ranges_.resize(kept);
}

CodePointSet CodePointSet::of(char32_t code_point) {
  const CodePointRange range{code_point, code_point};
  return CodePointSet({&range, 1});
}

bool CodePointSet::from_category_name(std::string_view name, CodePointSet& out) {
  uint32_t wanted = 0;
  for (size_t i = 0; i < std::size(kCategoryNames); ++i) {
    const std::string_view category = kCategoryNames[i];
    if (name == category || (name.size() == 1 && name[0] == category[0])) wanted |= 1u << i;
  }
  if (wanted == 0) return false;
  std::vector<CodePointRange> ranges;
  for (size_t i = 0; i < kCategoryStarts.size(); ++i) {
    if ((wanted >> (kCategoryStarts[i] & 31) & 1) == 0) continue;
    const char32_t end = i + 1 < kCategoryStarts.size() ? kCategoryStarts[i + 1] >> 5 : kMaxCodePoint + 1;
    ranges.push_back({kCategoryStarts[i] >> 5, end - 1});
  }
  out = CodePointSet(ranges);
  return true;
}

bool CodePointSet::contains(char32_t c) const { return ranges_contain(ranges_, c); }

CodePointSet CodePointSet::united_with(const CodePointSet& other) const {
  std::vector<CodePointRange> both = ranges_;
  both.insert(both.end(), other.ranges_.begin(), other.ranges_.end());
  return CodePointSet(both);
}

CodePointSet CodePointSet::complement() const {
  std::vector<CodePointRange> gaps;
  char32_t next = 0;
  for (const CodePointRange& range : ranges_) {
    if (range.first > next) gaps.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kMaxCodePoint) gaps.push_back({next, kMaxCodePoint});
  return CodePointSet(gaps);
}

bool CodePointSet::intersects(const CodePointSet& other) const {
  size_t i = 0, j = 0;
  while (i < ranges_.size() && j < other.ranges_.size()) {
    if (ranges_[i].last < other.ranges_[j].first) {
      ++i;
    } else if (other.ranges_[j].last < ranges_[i].first) {
      ++j;
    } else {
      return true;
    }
  }
  return false;
}

CodePointBitmap::CodePointBitmap(const CodePointSet& set) : block_of_((kMaxCodePoint + 1) / 256) {
  using Block = std::array<uint64_t, 4>;
  constexpr Block kNone{}, kAll{~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}};
  std::map<Block, uint16_t> seen;
  const auto place = [&](const Block& block) {
    const auto [entry, is_new] = seen.try_emplace(block, static_cast<uint16_t>(seen.size()));
    if (is_new) blocks_.insert(blocks_.end(), block.begin(), block.end());
    return entry->second;
  };
  const size_t num_blocks = block_of_.size();
  auto range = set.ranges().begin();
  const auto end = set.ranges().end();
  for (size_t index = 0, next = 0; index < num_blocks; index = next) {
    const char32_t start = static_cast<char32_t>(index * 256), last = start + 255;
    while (range != end && range->last < start) ++range;
    // Most blocks are in runs that have no member, or nothing else.
    uint16_t id;
    if (range == end || range->first > last) {
      next = range == end ? num_blocks : std::min<size_t>(num_blocks, range->first / 256);
      id = place(kNone);
    } else if (range->first <= start && range->last >= last) {
      next = std::min<size_t>(num_blocks, (static_cast<size_t>(range->last) + 1) / 256);
      id = place(kAll);
    } else {
      Block block{};
      for (auto r = range; r != end && r->first <= last; ++r) {
        const char32_t to = std::min<char32_t>(r->last, last);
        for (char32_t c = std::max(r->first, start); c <= to; c = (c | 63) + 1) {
          const char32_t word_last = std::min<char32_t>(to, c | 63);
          block[c >> 6 & 3] |= ~uint64_t{0} >> (63 - (word_last - c)) << (c & 63);
        }
      }
      next = index + 1;
      id = place(block);
    }
    std::fill(block_of_.begin() + static_cast<std::ptrdiff_t>(index),
              block_of_.begin() + static_cast<std::ptrdiff_t>(next), id);
  }
  std::copy_n(blocks_.begin() + block_of_[0] * 4, 2, ascii_);
}

size_t CodePointBitmap::skip_members(std::string_view text, size_t pos, size_t max_characters) const {
  for (; max_characters > 0 && pos < text.size(); --max_characters) {
    size_t next = pos;
    if (!contains(decode_utf8(text, next))) break;
    pos = next;
  }
  return pos;
}

}  // namespace quire::unicode
