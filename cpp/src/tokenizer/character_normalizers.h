// The normalizers that go by one character at a time.
#pragma once

#include <memory>

#include "tokenizer/pipeline.h"

namespace quire::text {

// Null when the section's type is none of Lowercase, StripAccents, Strip, Nmt and BertNormalizer. Throws
// InvalidArgument, naming the key.
std::unique_ptr<const Normalizer> make_character_normalizer(const JsonNode& section);

}  // namespace quire::text
