// What a request's parameters forbid token by token: made once, when the request comes to the worker.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "messages/engine_core_messages.h"

namespace quire {

struct TokenBans {
  // One bit a token, as in GrammarOutput: [ceil(V / 32)]; empty: all are allowed.
  std::vector<int32_t> allowed_bitmask;
  BadWords bad_words;
};

// The bad words of several rows, as BadWordsArgs takes them. One that is used again keeps its memory.
struct BadWordLists {
  std::vector<int32_t> row, begin, words;

  void clear();
  void add(int32_t of_row, const BadWords& bad_words);
  int32_t count() const { return static_cast<int32_t>(row.size()); }
};

// Null when nothing is forbidden, which is how most requests come.
std::unique_ptr<const TokenBans> make_token_bans(const SamplingParams& params, const BadWords& bad_words,
                                                 int32_t vocab_size);

}  // namespace quire
