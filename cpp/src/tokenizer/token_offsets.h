// Where the tokens of a text come from.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "quire/tokenizer.h"

namespace quire::text {

// The offsets of tokens on their way out, in step with their ids. Kept on request only: who appends ids
// takes a null pointer otherwise.
class TokenOffsets {
 public:
  // `will_be_trimmed`: whether there will be a call of trim, for which spaces must be counted.
  TokenOffsets(std::string_view text, bool will_be_trimmed)
      : text_(text), will_be_trimmed_(will_be_trimmed) {}

  // `written` is the token as the vocabulary, or the text, writes it.
  void push_back(TextSpan span, std::string_view written);
  // Puts so many tokens around the others that stand for no text.
  void enclose(size_t num_in_front, size_t num_behind);
  void clear() { tokens_.clear(); }

  // Takes off what "trim_offsets" does: as much white space as the tokens are written with at their ends,
  // but not the space that `keeps_prefix_space` says was put in front of the text.
  void trim(bool keeps_prefix_space);

  std::vector<TextSpan> spans() const;

 private:
  struct Token {
    TextSpan span;
    size_t spaces_in_front;
    size_t spaces_behind;
  };

  std::string_view text_;
  bool will_be_trimmed_;
  std::vector<Token> tokens_;
  size_t first_ = 0;  // that stands for text
};

}  // namespace quire::text
