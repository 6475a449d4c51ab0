#include "tokenizer/precompiled.h"

#include "quire/error.h"
#include "tokenizer/unicode.h"
#include "util/str.h"

namespace quire::text {
namespace {

constexpr size_t kMaxClusterBytes = 5;  // of those that are looked up whole

// The parts of a Hangul syllable: leading consonants, vowels, trailing consonants.
bool is_lead(char32_t c) { return (c >= 0x1100 && c <= 0x115F) || (c >= 0xA960 && c <= 0xA97C); }
bool is_vowel(char32_t c) { return (c >= 0x1160 && c <= 0x11A7) || (c >= 0xD7B0 && c <= 0xD7C6); }
bool is_trail(char32_t c) { return (c >= 0x11A8 && c <= 0x11FF) || (c >= 0xD7CB && c <= 0xD7FB); }
bool is_syllable(char32_t c) { return c >= 0xAC00 && c <= 0xD7A3; }

bool joins_hangul(char32_t last, char32_t next) {
  if (is_lead(last)) return is_lead(next) || is_vowel(next) || is_syllable(next);
  const bool is_open = is_vowel(last) || (is_syllable(last) && (last - 0xAC00) % 28 == 0);
  return (is_open && (is_vowel(next) || is_trail(next))) ||
         ((is_trail(last) || is_syllable(last)) && is_trail(next));
}

// The end of the grapheme cluster that begins at text[begin]; exact for those of at most kMaxClusterBytes.
class Clusters {
 public:
  size_t end_of(std::string_view text, size_t begin) const {
    size_t end = begin;
    char32_t last = decode_utf8(text, end);
    while (end < text.size()) {
      size_t after = end;
      const char32_t next = decode_utf8(text, after);
      const bool joins = last == '\r' ? next == '\n'
                                      : !controls_.contains(last) && !controls_.contains(next) &&
                                            (extending_.contains(next) || prepended_.contains(last) ||
                                             joins_hangul(last, next));
      if (!joins) break;
      end = after;
      last = next;
    }
    return end;
  }

 private:
  unicode::CodePointBitmap extending_{unicode::CodePointSet(unicode::kGraphemeExtending)};
  unicode::CodePointBitmap prepended_{unicode::CodePointSet(unicode::kGraphemePrepended)};
  unicode::CodePointBitmap controls_{unicode::CodePointSet(unicode::kGraphemeControls)};
};

const Clusters& clusters() {
  static const Clusters clusters;
  return clusters;
}

}  // namespace

CharacterMap::CharacterMap(std::string bytes) {
  const auto unit_at = [&](size_t i) {
    uint32_t unit = 0;
    for (size_t k = 0; k < 4; ++k) unit |= uint32_t{static_cast<unsigned char>(bytes[i + k])} << (8 * k);
    return unit;
  };
  if (bytes.size() < 4) throw InvalidArgument("is too short for a character map");
  const size_t array_bytes = unit_at(0);
  if (array_bytes % 4 != 0 || array_bytes == 0 || array_bytes > bytes.size() - 4) {
    throw InvalidArgument(str("says that its array takes ", array_bytes, " of ", bytes.size() - 4,
                              " bytes; a positive multiple of 4 that fits is expected"));
  }
  for (size_t i = 0; i < array_bytes; i += 4) units_.push_back(unit_at(4 + i));
  pool_ = bytes.substr(4 + array_bytes);
  if (const size_t bad = find_invalid_utf8(pool_); bad != std::string::npos) {
    throw InvalidArgument(str("has replacements that are no UTF-8, at byte ", bad));
  }
  for (unsigned char c = 0; c < 128; ++c) {
    std::string_view key(reinterpret_cast<const char*>(&c), 1);
    const uint32_t root = units_[0];
    const size_t node = ((root >> 10) << ((root & 1u << 9) >> 6)) ^ c;
    left_alone_[c] = c == 0 || node >= units_.size() || (units_[node] & (1u << 31 | 0xFF)) != c;
  }
}

std::optional<CharacterMap::Match> CharacterMap::find(std::string_view text, bool longest) const {
  const auto offset_of = [](uint32_t unit) { return size_t{unit >> 10} << ((unit & 1u << 9) >> 6); };
  std::optional<Match> found;
  size_t node = offset_of(units_[0]);
  for (size_t i = 0; i < text.size() && text[i] != 0; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    node ^= byte;
    if (node >= units_.size()) break;
    const uint32_t unit = units_[node];
    if ((unit & (1u << 31 | 0xFF)) != byte) break;
    node ^= offset_of(unit);
    if (node >= units_.size()) break;
    if ((unit >> 8 & 1) == 0) continue;
    const size_t begin = units_[node] & 0x7FFFFFFFu;
    // A place beyond the pool, or within a character, is no replacement.
    if (begin > pool_.size() ||
        (begin < pool_.size() && (static_cast<unsigned char>(pool_[begin]) & 0xC0) == 0x80))
      continue;
    const size_t end = std::min(pool_.find('\0', begin), pool_.size());
    found = {i + 1, std::string_view(pool_).substr(begin, end - begin)};
    if (!longest) break;
  }
  return found;
}

std::string apply_by_clusters(const CharacterMap& map, std::string_view text, bool& drops_start,
                              Alignment* alignment) {
  Rewriter out(text, alignment, text.size() + text.size() / 8);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = clusters().end_of(text, begin);
    const std::string_view cluster = text.substr(begin, end - begin);
    const auto whole = cluster.size() <= kMaxClusterBytes ? map.find_shortest(cluster) : std::nullopt;
    if (whole) {
      out.put_in_turn(whole->replacement, begin, end);
    } else {
      for (size_t pos = 0; pos < cluster.size();) {
        const size_t first = pos;
        decode_utf8(cluster, pos);
        const std::string_view character = cluster.substr(first, pos - first);
        const auto match = map.find_shortest(character);
        out.put_in_turn(match ? match->replacement : character, begin + first, begin + pos);
        if (begin == 0 && first == 0 && out.written().empty()) drops_start = true;
      }
    }
    if (begin == 0 && out.written().empty()) drops_start = true;
    begin = end;
  }
  return out.finish();
}

}  // namespace quire::text
