#include "tokenizer/token_offsets.h"

#include <algorithm>

#include "tokenizer/byte_level.h"
#include "tokenizer/unicode.h"

namespace quire {

void count_code_points(std::string_view text, std::span<TextSpan> spans) {
  // One for the places where tokens begin and one for those where they end: each goes forward nearly always.
  struct Cursor {
    std::string_view text;
    size_t byte = 0;
    size_t code_point = 0;

    bool begins_character(size_t pos) const { return (static_cast<unsigned char>(text[pos]) & 0xC0) != 0x80; }
    size_t move_to(size_t pos) {
      for (; byte < pos; ++byte) code_point += begins_character(byte);
      for (; byte > pos; --byte) code_point -= begins_character(byte - 1);
      return code_point;
    }
  };
  Cursor begins{text}, ends{text};
  for (TextSpan& span : spans) span = {begins.move_to(span.begin), ends.move_to(span.end)};
}

namespace text {
namespace {

bool is_space(char32_t c) {
  static const unicode::CodePointBitmap spaces{unicode::CodePointSet(unicode::kAddedTokenSpace)};
  return spaces.contains(c) || c == byte_level_characters()[' '];
}

}  // namespace

void TokenOffsets::push_back(TextSpan span, std::string_view written) {
  Token token{span, 0, 0};
  if (!will_be_trimmed_) return tokens_.push_back(token);
  for (size_t pos = 0; pos < written.size() && is_space(decode_utf8(written, pos));) ++token.spaces_in_front;
  for (size_t end = written.size(); end > 0; ++token.spaces_behind) {
    end = previous_utf8(written, end);
    size_t pos = end;
    if (!is_space(decode_utf8(written, pos))) break;
  }
  tokens_.push_back(token);
}

void TokenOffsets::enclose(size_t num_in_front, size_t num_behind) {
  tokens_.insert(tokens_.begin(), num_in_front, Token{});
  first_ += num_in_front;
  tokens_.resize(tokens_.size() + num_behind, Token{});
}

void TokenOffsets::trim(bool keeps_prefix_space) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    auto& [span, in_front, behind] = tokens_[i];
    // One space in front of the text may have been put there; of more, none was.
    const bool keeps = keeps_prefix_space && in_front == 1 && (i == first_ || span.begin == 0);
    for (size_t n = keeps ? 1 : 0; n < in_front && span.begin < span.end; ++n) decode_utf8(text_, span.begin);
    size_t end = span.end, n = 0;
    for (; n < behind && end > 0; ++n) end = previous_utf8(text_, end);
    // With fewer characters than that in all of the text so far, `tokenizers` leaves the end where it is.
    if (n == behind) span.end = std::max(span.begin, end);
  }
}

std::vector<TextSpan> TokenOffsets::spans() const {
  std::vector<TextSpan> spans;
  spans.reserve(tokens_.size());
  for (const Token& token : tokens_) spans.push_back(token.span);
  return spans;
}

}  // namespace text
}  // namespace quire
