// Texts made from texts, and where their bytes come from.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "quire/tokenizer.h"
#include "util/utf8.h"

namespace quire::text {

// Which part of the original text each byte of a text made from it stands for: whole characters, as Hugging
// Face `tokenizers` has it. Kept on request only: who changes a text takes a null pointer otherwise.
class Alignment {
 public:
  // The text is the original's as it stands, from there[begin]. Borrowed.
  void start(std::string_view text, size_t begin);
  // The text is [begin, end) of another one.
  void start_part(const Alignment& whole, size_t begin, size_t end);

  // What the bytes [begin, end) of the text stand for; if none, what is in front of the text.
  TextSpan span(size_t begin, size_t end) const;

 private:
  friend class Rewriter;
  struct Part {  // of the original, which is below 4 GiB
    uint32_t begin;
    uint32_t end;
  };

  std::string_view original_;  // while the text is that
  size_t begin_ = 0;           // of what the text was made from
  bool is_changed_ = false;
  std::vector<Part> parts_;  // of each byte of a changed text
};

// What a text may grow to when it is written anew: no language's forms are that much longer, but replacements
// of a tokenizer.json could be. Throws InvalidArgument beyond that.
inline constexpr size_t max_rewritten_bytes(size_t original_bytes) {
  return (size_t{1} << 20) + 64 * original_bytes;
}
void check_rewritten_bytes(size_t bytes, size_t original_bytes);

// Writes a text anew, from the front to the back, and its alignment if there is one. Places are those in
// the text as it was, the source.
class Rewriter {
 public:
  Rewriter(std::string_view source, Alignment* alignment, size_t capacity)
      : source_(source), max_bytes_(max_rewritten_bytes(source.size())), alignment_(alignment) {
    written_.reserve(capacity);
  }

  void copy(size_t begin, size_t end) {
    written_ += source_.substr(begin, end - begin);
    if (alignment_ != nullptr) record_copy(begin, end);
  }
  // What takes the place of [begin, end), as a whole.
  void put(std::string_view bytes, size_t begin, size_t end) {
    written_ += bytes;
    if (written_.size() > max_bytes_) check_rewritten_bytes(written_.size(), source_.size());
    if (alignment_ != nullptr) record(begin, end);
  }
  void put(char32_t character, size_t begin, size_t end) {
    append_utf8(character, written_);
    if (alignment_ != nullptr) record(begin, end);
  }
  // Likewise, but character by character; those for which there are none stand for the last.
  void put_in_turn(std::string_view text, size_t begin, size_t end);

  std::string_view written() const { return written_; }
  void cut(size_t size);  // keeps so much of what is written
  // Ends the writing: the alignment is now that of the text returned.
  std::string finish();

 private:
  void record(size_t begin, size_t end);
  void record_copy(size_t begin, size_t end);

  std::string_view source_;
  std::string written_;
  size_t max_bytes_;
  Alignment* alignment_;
  std::vector<Alignment::Part> parts_;
};

}  // namespace quire::text
