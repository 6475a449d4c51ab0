// What must hold of the offsets of any text's tokens.
#pragma once

#include <cstdlib>
#include <string_view>

#include "quire/tokenizer.h"

// Aborts unless it does.
inline void check_token_offsets(const quire::Tokenizer& tokenizer, std::string_view text,
                                bool add_special_tokens) {
  const auto begins_character = [&](size_t pos) {
    return pos == text.size() || (static_cast<unsigned char>(text[pos]) & 0xC0) != 0x80;
  };
  const quire::Encoding encoding = tokenizer.encode_with_offsets(text, add_special_tokens);
  if (encoding.ids != tokenizer.encode(text, add_special_tokens)) std::abort();
  if (encoding.offsets.size() != encoding.ids.size()) std::abort();
  size_t last = 0;
  for (const auto& [begin, end] : encoding.offsets) {
    if (begin > end || end > text.size()) std::abort();
    if (!begins_character(begin) || !begins_character(end)) std::abort();
    if (begin == end) continue;  // added by the post-processor, or trimmed to nothing
    if (begin < last) std::abort();
    last = begin;
  }
}
