// Words that an answer may not hold, as the tokens that spell them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "quire/tokenizer.h"

namespace quire {

// For each word the tokens of its text, and those of a blank and its text where these are as many and begin
// with another token: what a word is written with at the beginning of a text and within it. Blanks at a
// word's beginning do not count. Throws InvalidArgument for a word of nothing but blanks, and for one of more
// than kMaxBadWordTokens tokens or with one that the model has not.
std::vector<std::vector<int32_t>> tokenize_bad_words(const std::vector<std::string>& words,
                                                     const Tokenizer& tokenizer, int32_t vocab_size);

}  // namespace quire
