#include "tokenizer/byte_level.h"

#include "tokenizer/unicode.h"

namespace quire::text {
namespace {

std::array<char32_t, 256> make_characters() {
  std::array<char32_t, 256> characters{};
  char32_t next = 0x100;
  for (char32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    characters[b] = printable ? b : next++;
  }
  return characters;
}

// The byte of each character of the alphabet, -1 for the others.
std::array<int16_t, 0x144> make_bytes() {
  std::array<int16_t, 0x144> bytes;
  bytes.fill(-1);
  for (size_t b = 0; b < 256; ++b) bytes[byte_level_characters()[b]] = static_cast<int16_t>(b);
  return bytes;
}

}  // namespace

const std::array<char32_t, 256>& byte_level_characters() {
  static const std::array<char32_t, 256> characters = make_characters();
  return characters;
}

std::string to_byte_level(std::string_view bytes) {
  std::string token;
  for (char byte : bytes) append_utf8(byte_level_characters()[static_cast<unsigned char>(byte)], token);
  return token;
}

void write_byte_level(std::string_view source, size_t begin, size_t end, Rewriter& out) {
  const auto& characters = byte_level_characters();
  for (size_t i = begin; i < end; ++i) out.put(characters[static_cast<unsigned char>(source[i])], i, i + 1);
}

std::optional<std::string> from_byte_level(std::string_view token) {
  static const auto byte_of = make_bytes();
  std::string bytes;
  bytes.reserve(token.size());
  for (size_t pos = 0; pos < token.size();) {
    const char32_t c = decode_utf8(token, pos);
    if (c >= byte_of.size() || byte_of[c] < 0) return std::nullopt;
    bytes += static_cast<char>(byte_of[c]);
  }
  return bytes;
}

}  // namespace quire::text
