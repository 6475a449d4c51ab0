#include "sampler/token_bans.h"

namespace quire {

void BadWordLists::clear() {
  row.clear();
  begin.assign(1, 0);
  words.clear();
}

void BadWordLists::add(int32_t of_row, const BadWords& bad_words) {
  for (const std::vector<int32_t>& word : *bad_words) {
    words.insert(words.end(), word.begin(), word.end());
    row.push_back(of_row);
    begin.push_back(static_cast<int32_t>(words.size()));
  }
}

std::unique_ptr<const TokenBans> make_token_bans(const SamplingParams& params, const BadWords& bad_words,
                                                 int32_t vocab_size) {
  if (!params.allowed_token_ids && bad_words->empty()) return nullptr;
  auto bans = std::make_unique<TokenBans>();
  bans->bad_words = bad_words;
  if (params.allowed_token_ids) {
    bans->allowed_bitmask.resize((static_cast<size_t>(vocab_size) + 31) / 32);
    for (const int32_t id : *params.allowed_token_ids) {
      int32_t& word = bans->allowed_bitmask[static_cast<size_t>(id) / 32];
      word = static_cast<int32_t>(static_cast<uint32_t>(word) | 1U << (id % 32));
    }
  }
  return bans;
}

}  // namespace quire
