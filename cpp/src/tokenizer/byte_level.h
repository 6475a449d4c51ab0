// The byte-level alphabet: every byte has a printable character, so that a vocabulary of bytes can be
// written as text. Printable Latin-1 stands for itself; the rest, in order, are U+0100 and up.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "tokenizer/rewriter.h"

namespace quire::text {

// The character that stands for each byte.
const std::array<char32_t, 256>& byte_level_characters();

// `bytes` as the vocabulary writes them (" the" -> "Ġthe").
std::string to_byte_level(std::string_view bytes);
// Likewise, of the source's bytes [begin, end).
void write_byte_level(std::string_view source, size_t begin, size_t end, Rewriter& out);

// The bytes that `token` stands for, or nothing when it has a character outside the alphabet.
std::optional<std::string> from_byte_level(std::string_view token);

}  // namespace quire::text
