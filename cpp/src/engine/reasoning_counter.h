// How many tokens of an answer lie inside a reasoning block.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace quire {

// What a block begins and ends with: EngineConfig's think_start_token_ids and think_end_token_ids.
struct ReasoningTokens {
  std::vector<int32_t> start, end;

  bool empty() const { return start.empty() || end.empty(); }
};

// Counts as tokens come. A block may begin in the prompt, as templates write it, and ends with the first end
// behind its start, or never. The tokens of start and end are not counted, and of the prompt nothing is.
// Borrows what it is made of. Not thread-safe.
class ReasoningCounter {
 public:
  // `tokens` is not empty.
  ReasoningCounter(const ReasoningTokens& tokens, std::span<const int32_t> prompt_token_ids);

  void append(int32_t token_id);
  // So far. Tokens that may be the beginning of the end are not among them before that is decided: by what
  // follows, or when nothing does any more.
  int32_t count(bool is_finished) const;

 private:
  std::span<const int32_t> wanted() const { return is_inside_ ? tokens_->end : tokens_->start; }

  const ReasoningTokens* tokens_;
  bool is_inside_ = false;
  // The last tokens of the prompt or the answer, which are the first ones of what is waited for.
  size_t num_matched_ = 0;
  int32_t num_matched_of_prompt_ = 0;  // those of num_matched_ that are the prompt's
  int32_t count_ = 0;                  // of blocks so far, num_matched_ included
};

}  // namespace quire
