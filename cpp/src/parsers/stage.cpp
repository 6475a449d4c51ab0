#include "parsers/stage.h"

#include <utility>

namespace quire::parsers {

std::string_view trim(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

Markers::Markers(std::vector<std::string> texts) : texts_(std::move(texts)) {
  for (size_t i = 0; i < texts_.size(); ++i) search_.insert(texts_[i], static_cast<int32_t>(i));
  search_.link();
}

void MarkedStage::put(char byte) {
  const AhoCorasick& search = markers_->search();
  state_ = search.next(state_, byte);
  if (state_ == AhoCorasick::kStart && held_.empty()) return on_text(byte);
  held_ += byte;
  const int32_t marker = search.match(state_);
  const size_t keep = marker >= 0 ? search.match_length(state_) : search.depth(state_);
  const std::string text = held_.substr(0, held_.size() - keep);
  held_.erase(0, text.size());
  if (marker >= 0) {
    held_.clear();
    state_ = AhoCorasick::kStart;
  }
  for (const char c : text) on_text(c);
  if (marker >= 0) on_marker(marker);
}

void MarkedStage::finish() {
  for (const char c : std::exchange(held_, {})) on_text(c);
  on_end();
}

}  // namespace quire::parsers
