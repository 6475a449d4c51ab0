#include "grammar/thinking.h"

#include <algorithm>

namespace quire {

Thinking::Thinking(const ThinkTokens& tokens, std::span<const int32_t> prompt_token_ids)
    : tokens_(&tokens), has_ended_(tokens.end.empty()) {
  if (has_ended_) return;
  const auto last_of = [&](const std::vector<int32_t>& ids) {
    const auto found =
        std::find_end(prompt_token_ids.begin(), prompt_token_ids.end(), ids.begin(), ids.end());
    return found == prompt_token_ids.end() ? -1 : found - prompt_token_ids.begin();
  };
  const auto last_end = last_of(tokens.end);
  has_ended_ = last_end >= 0 && last_end > last_of(tokens.start);
  if (has_ended_) return;
  // The prompt may hold the beginning of the end.
  const size_t num_before = std::min(prompt_token_ids.size(), tokens.end.size() - 1);
  for (const int32_t token_id : prompt_token_ids.last(num_before)) take(token_id);
}

void Thinking::take(int32_t token_id) {
  if (has_ended_) return;
  const std::vector<int32_t>& end = tokens_->end;
  // The longest beginning of the end that ends with this token: short ends need no table for it.
  const std::span matched(end.data(), num_matched_);
  for (size_t length = num_matched_ + 1; length > 0; --length) {
    if (end[length - 1] != token_id) continue;
    const auto before = matched.last(length - 1);
    if (!std::equal(before.begin(), before.end(), end.begin())) continue;
    num_matched_ = length;
    has_ended_ = length == end.size();
    return;
  }
  num_matched_ = 0;
}

}  // namespace quire
