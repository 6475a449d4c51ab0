#include "engine/reasoning_counter.h"

#include <algorithm>

namespace quire {

ReasoningCounter::ReasoningCounter(const ReasoningTokens& tokens, std::span<const int32_t> prompt_token_ids)
    : tokens_(&tokens) {
  for (const int32_t id : prompt_token_ids) append(id);
  count_ = 0;
  num_matched_of_prompt_ = is_inside_ ? static_cast<int32_t>(num_matched_) : 0;
}

void ReasoningCounter::append(int32_t token_id) {
  const std::span<const int32_t> pattern = wanted();
  if (is_inside_) ++count_;
  // The longest beginning of the pattern that the tokens end with now. Patterns are a few tokens long.
  size_t length = num_matched_;
  while (pattern[length] != token_id && length > 0) {
    // What was matched is pattern[0, length): its longest end that is a beginning, too.
    size_t shorter = length - 1;
    while (shorter > 0 &&
           !std::ranges::equal(pattern.first(shorter), pattern.subspan(length - shorter, shorter)))
      --shorter;
    length = shorter;
  }
  if (pattern[length] == token_id) ++length;
  // Of the prompt's tokens the first ones fall away first.
  const auto num_dropped = static_cast<int32_t>(num_matched_) + 1 - static_cast<int32_t>(length);
  num_matched_of_prompt_ = std::max(num_matched_of_prompt_ - num_dropped, 0);
  num_matched_ = length;
  if (num_matched_ < pattern.size()) return;
  if (is_inside_) count_ -= static_cast<int32_t>(num_matched_) - num_matched_of_prompt_;
  is_inside_ = !is_inside_;
  num_matched_ = 0;
  num_matched_of_prompt_ = 0;
}

int32_t ReasoningCounter::count(bool is_finished) const {
  if (!is_inside_ || is_finished) return count_;
  return count_ - (static_cast<int32_t>(num_matched_) - num_matched_of_prompt_);
}

}  // namespace quire
