// The pre-tokenizers that go by spaces, punctuation and counts rather than by a pattern.
#pragma once

#include <memory>

#include "tokenizer/pipeline.h"

namespace quire::text {

// Null when the section's type is none of Metaspace, Whitespace, WhitespaceSplit, Punctuation,
// BertPreTokenizer, CharDelimiterSplit and FixedLength. Throws InvalidArgument, naming the key.
std::unique_ptr<const PreTokenizer> make_word_pre_tokenizer(const JsonNode& section);

}  // namespace quire::text
