// Whether an answer still thinks, by its tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace quire {

// What a reasoning block begins and ends with; both empty: nobody thinks.
struct ThinkTokens {
  std::vector<int32_t> start, end;
};

// Follows one answer. Cheap to copy.
class Thinking {
 public:
  // `tokens` outlives it. An answer thinks from its first token on, or when it comes to it, unless the last
  // that the prompt says of thinking is its end.
  Thinking(const ThinkTokens& tokens, std::span<const int32_t> prompt_token_ids);

  // The next token comes behind the end of thinking.
  bool has_ended() const { return has_ended_; }
  void take(int32_t token_id);

 private:
  const ThinkTokens* tokens_;
  bool has_ended_;
  // Leading tokens of the end that the last tokens are.
  size_t num_matched_ = 0;
};

}  // namespace quire
