#include "chat/python_strings.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <span>

#include "chat/budget.h"
#include "chat/python_unicode.h"
#include "chat/value.h"
#include "util/str.h"

namespace quire::chat {
namespace {

bool is_space(char32_t c) { return ranges_contain(kSpace, c); }

void append_mapped(std::span<const CodePointMapping> mappings, std::span<const char32_t> pool, char32_t c,
                   std::string& out) {
  const std::u32string_view mapped = find_mapping(mappings, pool, c);
  if (mapped.empty()) return append_utf8(c, out);
  for (const char32_t character : mapped) append_utf8(character, out);
}

// One step for a character: those who ask for them look each up in a table.
void spend_characters(std::string_view text) { spend(static_cast<int64_t>(text.size())); }

std::u32string characters_of(std::string_view text) {
  spend_characters(text);
  std::u32string characters;
  for (size_t pos = 0; pos < text.size();) characters += decode_utf8(text, pos);
  return characters;
}

// Appends the small letter of text[i]. A capital sigma that ends a word has a small letter of its own.
void append_lower(const std::u32string& text, size_t i, std::string& out) {
  if (text[i] != 0x3A3) return append_mapped(kLower, kLowerPool, text[i], out);
  size_t before = i;
  while (before > 0 && ranges_contain(kCaseIgnorable, text[before - 1])) --before;
  size_t after = i + 1;
  while (after < text.size() && ranges_contain(kCaseIgnorable, text[after])) ++after;
  const bool ends_word = before > 0 && ranges_contain(kCased, text[before - 1]) &&
                         (after == text.size() || !ranges_contain(kCased, text[after]));
  append_utf8(ends_word ? 0x3C2 : 0x3C3, out);
}

bool is_line_end(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

// Each part becomes a value. What is found beyond the most that a list may hold is found in vain.
void add_part(std::vector<std::string_view>& parts, std::string_view part) {
  spend_values(1);
  parts.push_back(part);
}

std::vector<std::string_view> split_at_space(std::string_view text, int64_t max_splits) {
  spend_scan(text.size());
  std::vector<std::string_view> parts;
  std::string_view rest = strip(text, Side::kLeft);
  while (!rest.empty()) {
    if (max_splits >= 0 && static_cast<int64_t>(parts.size()) == max_splits) {
      add_part(parts, rest);
      break;
    }
    size_t end = 0;
    for (size_t next = 0; end < rest.size(); end = next) {
      if (is_space(decode_utf8(rest, next))) break;
    }
    add_part(parts, rest.substr(0, end));
    rest = strip(rest.substr(end), Side::kLeft);
  }
  return parts;
}

// The start of the last character that ends at `end`.
size_t previous_character(std::string_view text, size_t end) {
  do {
    --end;
  } while ((static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
  return end;
}

std::vector<std::string_view> split_at_space_from_right(std::string_view text, int64_t max_splits) {
  spend_scan(text.size());
  std::vector<std::string_view> parts;
  std::string_view rest = strip(text, Side::kRight);
  while (!rest.empty()) {
    if (max_splits >= 0 && static_cast<int64_t>(parts.size()) == max_splits) {
      add_part(parts, rest);
      break;
    }
    size_t begin = rest.size();
    while (begin > 0) {
      const size_t previous = previous_character(rest, begin);
      size_t pos = previous;
      if (is_space(decode_utf8(rest, pos))) break;
      begin = previous;
    }
    add_part(parts, rest.substr(begin));
    rest = strip(rest.substr(0, begin), Side::kRight);
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

// From the right, all but the last `max_splits` separators. Looks for them in the text backwards, since
// looking from the right may take the product of both sizes.
std::vector<std::string_view> split_backwards(std::string_view text, std::string_view separator,
                                              int64_t max_splits) {
  const std::string text_backwards(text.rbegin(), text.rend());
  const std::string separator_backwards(separator.rbegin(), separator.rend());
  std::vector<std::string_view> parts =
      split(text_backwards, separator_backwards, max_splits, /*from_right=*/false);
  for (std::string_view& part : parts) {
    const auto before = static_cast<size_t>(part.data() - text_backwards.data());
    part = text.substr(text.size() - before - part.size(), part.size());
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

}  // namespace

void check_string_size(size_t bytes) {
  if (bytes > kMaxStringBytes) {
    fail(str("a string would be longer than ", kMaxStringBytes, " bytes"));
  }
}

size_t count_characters(std::string_view text) {
  spend_copy(text.size());
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xC0) != 0x80; }));
}

std::vector<std::string_view> split_characters(std::string_view text) {
  spend_characters(text);
  spend_bytes(static_cast<int64_t>(text.size() * sizeof(std::string_view)));
  std::vector<std::string_view> characters;
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    decode_utf8(text, pos);
    characters.push_back(text.substr(begin, pos - begin));
  }
  return characters;
}

std::string_view slice_characters(std::string_view text, size_t first, size_t last) {
  spend_scan(text.size());
  const auto skip = [&](size_t pos, size_t count) {
    while (count > 0 && pos < text.size()) {
      decode_utf8(text, pos);
      --count;
    }
    return pos;
  };
  const size_t begin = skip(0, first);
  return text.substr(begin, skip(begin, last > first ? last - first : 0) - begin);
}

size_t find_text(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size()) return text.npos;
  const void* found = ::memmem(text.data() + from, text.size() - from, part.data(), part.size());
  const size_t at = found ? static_cast<size_t>(static_cast<const char*>(found) - text.data()) : text.npos;
  spend_scan(std::min(at, text.size()) - from + part.size());
  return at;
}

size_t rfind_text(std::string_view text, std::string_view part) {
  spend_scan(text.size() + part.size());
  if (part.size() <= 16) return text.rfind(part);
  const std::string text_backwards(text.rbegin(), text.rend());
  const std::string part_backwards(part.rbegin(), part.rend());
  const size_t at = find_text(text_backwards, part_backwards);
  return at == text.npos ? at : text.size() - at - part.size();
}

std::string to_lower(std::string_view text) {
  const std::u32string characters = characters_of(text);
  std::string out;
  for (size_t i = 0; i < characters.size(); ++i) append_lower(characters, i, out);
  return out;
}

std::string to_upper(std::string_view text) {
  spend_characters(text);
  std::string out;
  for (size_t pos = 0; pos < text.size();) append_mapped(kUpper, kUpperPool, decode_utf8(text, pos), out);
  return out;
}

std::string to_title(std::string_view text) {
  const std::u32string characters = characters_of(text);
  std::string out;
  for (size_t i = 0; i < characters.size(); ++i) {
    if (i > 0 && ranges_contain(kCased, characters[i - 1])) {
      append_lower(characters, i, out);
    } else {
      append_mapped(kTitle, kTitlePool, characters[i], out);
    }
  }
  return out;
}

std::string capitalize(std::string_view text) {
  const std::u32string characters = characters_of(text);
  std::string out;
  for (size_t i = 0; i < characters.size(); ++i) {
    if (i == 0) {
      append_mapped(kTitle, kTitlePool, characters[i], out);
    } else {
      append_lower(characters, i, out);
    }
  }
  return out;
}

std::string_view strip(std::string_view text, Side side, std::optional<std::string_view> characters) {
  std::u32string set = characters ? characters_of(*characters) : std::u32string();
  std::sort(set.begin(), set.end());
  const auto is_stripped = [&](char32_t c) {
    spend(1);
    return characters ? std::binary_search(set.begin(), set.end(), c) : is_space(c);
  };
  while (side != Side::kRight && !text.empty()) {
    size_t pos = 0;
    if (!is_stripped(decode_utf8(text, pos))) break;
    text.remove_prefix(pos);
  }
  while (side != Side::kLeft && !text.empty()) {
    const size_t begin = previous_character(text, text.size());
    size_t pos = begin;
    if (!is_stripped(decode_utf8(text, pos))) break;
    text = text.substr(0, begin);
  }
  return text;
}

std::vector<std::string_view> split(std::string_view text, std::optional<std::string_view> separator,
                                    int64_t max_splits, bool from_right) {
  if (!separator)
    return from_right ? split_at_space_from_right(text, max_splits) : split_at_space(text, max_splits);
  if (separator->empty()) fail("split with an empty separator");
  if (from_right && separator->size() > 1) return split_backwards(text, *separator, max_splits);
  std::vector<std::string_view> parts;
  const auto may_split = [&] { return max_splits < 0 || static_cast<int64_t>(parts.size()) < max_splits; };
  if (from_right) spend_scan(text.size());
  while (may_split()) {
    const size_t at = from_right ? text.rfind(*separator) : find_text(text, *separator);
    if (at == text.npos) break;
    const size_t after = at + separator->size();
    add_part(parts, from_right ? text.substr(after) : text.substr(0, at));
    text = from_right ? text.substr(0, at) : text.substr(after);
  }
  add_part(parts, text);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  spend_scan(text.size());
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t pos = 0; pos < text.size();) {
    const size_t end = pos;
    const char32_t c = decode_utf8(text, pos);
    if (!is_line_end(c)) continue;
    if (c == '\r' && pos < text.size() && text[pos] == '\n') ++pos;
    lines.push_back(text.substr(begin, (keep_ends ? pos : end) - begin));
    begin = pos;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::string replace(std::string_view text, std::string_view old, std::string_view with, int64_t max_count) {
  std::string out;
  int64_t count = 0;
  const auto may_replace = [&] { return max_count < 0 || count < max_count; };
  const auto put = [&](std::string_view part) {
    check_string_size(out.size() + part.size());
    spend(1);
    spend_copy(part.size());
    out += part;
  };
  size_t pos = 0;
  if (old.empty()) {  // between all characters, and at both ends
    while (may_replace()) {
      put(with);
      ++count;
      if (pos == text.size()) return out;
      const size_t begin = pos;
      decode_utf8(text, pos);
      put(text.substr(begin, pos - begin));
    }
  } else {
    while (may_replace()) {
      const size_t at = find_text(text, old, pos);
      if (at == text.npos) break;
      put(text.substr(pos, at - pos));
      put(with);
      pos = at + old.size();
      ++count;
    }
  }
  put(text.substr(pos));
  return out;
}

size_t count_occurrences(std::string_view text, std::string_view part) {
  if (part.empty()) return count_characters(text) + 1;
  size_t count = 0;
  for (size_t at = find_text(text, part); at != text.npos; at = find_text(text, part, at + part.size()))
    ++count;
  return count;
}

std::optional<bool> ask_characters(std::string_view method, std::string_view text) {
  const std::u32string characters = characters_of(text);
  const auto all = [&](auto&& is_member) {
    return !characters.empty() && std::all_of(characters.begin(), characters.end(), is_member);
  };
  const auto all_in = [&](std::span<const CodePointRange> ranges) {
    return all([&](char32_t c) { return ranges_contain(ranges, c); });
  };
  const auto any_in = [&](std::span<const CodePointRange> ranges) {
    return std::any_of(characters.begin(), characters.end(),
                       [&](char32_t c) { return ranges_contain(ranges, c); });
  };
  if (method == "isspace") return all_in(kSpace);
  if (method == "isalpha") return all_in(kAlpha);
  if (method == "isdecimal") return all_in(kDecimal);
  if (method == "isdigit") return all_in(kDigit);
  if (method == "isnumeric") return all_in(kNumeric);
  if (method == "isprintable") return characters.empty() || all_in(kPrintable);
  if (method == "isascii") return characters.empty() || all([](char32_t c) { return c < 0x80; });
  if (method == "isalnum") {
    return all([](char32_t c) {
      return ranges_contain(kAlpha, c) || ranges_contain(kDecimal, c) || ranges_contain(kDigit, c) ||
             ranges_contain(kNumeric, c);
    });
  }
  if (method == "isupper") return any_in(kUpperLetters) && !any_in(kLowerLetters) && !any_in(kTitleLetters);
  if (method == "islower") return any_in(kLowerLetters) && !any_in(kUpperLetters) && !any_in(kTitleLetters);
  return std::nullopt;
}

std::string quote(std::string_view text) {
  spend_characters(text);
  const bool has_single = text.find('\'') != text.npos;
  const char mark = has_single && text.find('"') == text.npos ? '"' : '\'';
  std::string out(1, mark);
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = decode_utf8(text, pos);
    if (c == static_cast<unsigned char>(mark) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (ranges_contain(kPrintable, c)) {
      append_utf8(c, out);
    } else {
      char escape[16];
      const char* format = c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x";
      std::snprintf(escape, sizeof escape, format, static_cast<unsigned>(c));
      out += escape;
    }
  }
  out += mark;
  return out;
}

}  // namespace quire::chat
