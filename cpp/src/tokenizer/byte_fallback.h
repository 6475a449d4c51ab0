// The tokens "<0x00>" to "<0xFF>", each for one byte of a character that has no token.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace quire::text {

inline std::string byte_token(uint8_t byte) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  return std::string("<0x") + kDigits[byte >> 4] + kDigits[byte & 15] + '>';
}

// The byte that `token` stands for, if it is such a token, its digits in either case.
inline std::optional<uint8_t> byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  uint8_t byte = 0;
  for (const char c : token.substr(3, 2)) {
    const char lower = static_cast<char>(c | 0x20);
    const bool is_digit = c >= '0' && c <= '9', is_letter = lower >= 'a' && lower <= 'f';
    if (!is_digit && !is_letter) return std::nullopt;
    byte = static_cast<uint8_t>(byte << 4 | (is_digit ? c - '0' : lower - 'a' + 10));
  }
  return byte;
}

}  // namespace quire::text
