#include "engine/bad_words.h"

#include <algorithm>
#include <utility>

#include "messages/engine_core_messages.h"
#include "quire/error.h"
#include "util/str.h"

namespace quire {

std::vector<std::vector<int32_t>> tokenize_bad_words(const std::vector<std::string>& words,
                                                     const Tokenizer& tokenizer, int32_t vocab_size) {
  std::vector<std::vector<int32_t>> sequences;
  const auto encode = [&](size_t index, const std::string& text) {
    std::vector<int32_t> ids = tokenizer.encode(text, /*add_special_tokens=*/false);
    if (ids.empty()) throw InvalidArgument(str("bad_words[", index, "] is no token; leave it out"));
    if (ids.size() > kMaxBadWordTokens) {
      throw InvalidArgument(str("bad_words[", index, "] is ", ids.size(),
                                " tokens long; a bad word may have at most ", kMaxBadWordTokens));
    }
    const auto last = std::ranges::max_element(ids);
    if (*last >= vocab_size) {
      throw InvalidArgument(
          str("bad_words[", index, "] has token id ", *last, "; the model's go from 0 to ", vocab_size - 1));
    }
    return ids;
  };
  for (size_t i = 0; i < words.size(); ++i) {
    const size_t begin = words[i].find_first_not_of(" \t\n\v\f\r");
    if (begin == std::string::npos) {
      throw InvalidArgument(
          str("bad_words[", i, "] is nothing but blanks; give text, or forbid tokens by logit_bias"));
    }
    const std::string word = words[i].substr(begin);
    std::vector<int32_t> bare = encode(i, word), spaced = encode(i, " " + word);
    const bool is_another = spaced.front() != bare.front() && spaced.size() == bare.size();
    sequences.push_back(std::move(bare));
    if (is_another) sequences.push_back(std::move(spaced));
  }
  return sequences;
}

}  // namespace quire
