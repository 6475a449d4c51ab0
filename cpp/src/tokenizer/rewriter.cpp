#include "tokenizer/rewriter.h"

#include "quire/error.h"
#include "util/str.h"

namespace quire::text {
namespace {

bool begins_character(std::string_view text, size_t pos) {
  return pos >= text.size() || (static_cast<unsigned char>(text[pos]) & 0xC0) != 0x80;
}

}  // namespace

void Alignment::start(std::string_view text, size_t begin) {
  original_ = text;
  begin_ = begin;
  is_changed_ = false;
  parts_.clear();
}

void Alignment::start_part(const Alignment& whole, size_t begin, size_t end) {
  if (!whole.is_changed_) return start(whole.original_.substr(begin, end - begin), whole.begin_ + begin);
  is_changed_ = true;
  begin_ = whole.span(begin, end).begin;
  const auto first = whole.parts_.begin();
  parts_.assign(first + static_cast<ptrdiff_t>(begin), first + static_cast<ptrdiff_t>(end));
}

TextSpan Alignment::span(size_t begin, size_t end) const {
  if (begin >= end) return {begin_, begin_};
  if (is_changed_) return {parts_[begin].begin, parts_[end - 1].end};
  while (!begins_character(original_, begin)) --begin;
  while (!begins_character(original_, end)) ++end;
  return {begin_ + begin, begin_ + end};
}

void check_rewritten_bytes(size_t bytes, size_t original_bytes) {
  if (const size_t most = max_rewritten_bytes(original_bytes); bytes > most)
    throw InvalidArgument(str("a text of ", original_bytes, " bytes grows to more than ", most,
                              " when normalized: what replaces its characters is too long"));
}

void Rewriter::put_in_turn(std::string_view text, size_t begin, size_t end) {
  if (alignment_ == nullptr) return put(text, begin, end);
  size_t last = begin;
  for (size_t pos = 0, next = begin; pos < text.size();) {
    const size_t first = pos;
    decode_utf8(text, pos);
    if (next < end) {
      last = next;
      decode_utf8(source_, next);
    }
    put(text.substr(first, pos - first), last, last + 1);
  }
}

void Rewriter::cut(size_t size) {
  written_.resize(size);
  if (alignment_ != nullptr) parts_.resize(size);
}

std::string Rewriter::finish() {
  if (alignment_ != nullptr) {
    alignment_->is_changed_ = true;
    alignment_->parts_ = std::move(parts_);
  }
  return std::move(written_);
}

void Rewriter::record(size_t begin, size_t end) {
  const TextSpan span = alignment_->span(begin, end);
  parts_.resize(written_.size(), {static_cast<uint32_t>(span.begin), static_cast<uint32_t>(span.end)});
}

void Rewriter::record_copy(size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) {
    const TextSpan span = alignment_->span(i, i + 1);
    parts_.push_back({static_cast<uint32_t>(span.begin), static_cast<uint32_t>(span.end)});
  }
}

}  // namespace quire::text
