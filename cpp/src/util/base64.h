// Bytes written as text (RFC 4648, section 4).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace quire {

// The bytes of `text`; nothing where it is not base64. Padding may be left out.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace quire
