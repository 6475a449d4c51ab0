#include "tokenizer/token_trie.h"

namespace quire::text {

int32_t TokenTrie::find(std::string_view text, size_t start, size_t& begin, size_t& end) const {
  if (empty()) return -1;
  int32_t found = -1;
  AhoCorasick::State state = AhoCorasick::kStart;
  for (size_t pos = start; pos < text.size(); ++pos) {
    if (state == AhoCorasick::kStart) pos = strings_.next_begin(text, pos);  // most of a text is of no string
    if (pos == text.size()) break;
    state = strings_.next(state, text[pos]);
    // What is to come begins behind what was found.
    if (found >= 0 && pos + 1 - strings_.depth(state) > begin) return found;
    const int32_t match = strings_.match(state);
    if (match < 0) continue;
    const size_t match_begin = pos + 1 - strings_.match_length(state);
    if (found >= 0 && match_begin > begin) continue;
    found = match;
    begin = match_begin;
    end = pos + 1;
  }
  return found;
}

}  // namespace quire::text
