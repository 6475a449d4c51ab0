// Which bytes are text.
#pragma once

#include <cstddef>
#include <string_view>

#include "quire/export.h"

namespace quire {

// The offset of the first byte that is not valid UTF-8, or npos. Forms longer than need be, halves of
// surrogate pairs and what lies past U+10FFFF are not valid. Thread-safe.
QUIRE_API size_t find_invalid_utf8(std::string_view text);

}  // namespace quire
