// What the Metaspace pre-tokenizer and decoder read from their sections alike.
#pragma once

#include <string>

#include "formats/json.h"

namespace quire::text {

// Which pieces of a text get a space at the front: all, the one the text begins with, or none.
enum class PrependScheme { kAlways, kFirst, kNever };

// These throw InvalidArgument, naming the key.
PrependScheme read_prepend_scheme(const JsonNode& section);
std::string read_one_character(const JsonNode& node);
std::string read_metaspace_replacement(const JsonNode& section);

}  // namespace quire::text
