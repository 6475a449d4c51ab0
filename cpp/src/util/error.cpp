#include "quire/error.h"

#include <cstring>
#include <string_view>

#include "util/check.h"

namespace quire {
namespace {

constexpr size_t kMaxHeadBytes = 1400, kMaxTailBytes = 600;  // of a message: what would do stands at its end

// How many bytes the character at `pos` has; 0 when they are no UTF-8.
size_t character_bytes(std::string_view text, size_t pos) {
  const auto byte = [&](size_t i) {
    return pos + i < text.size() ? static_cast<unsigned char>(text[pos + i]) : 0U;
  };
  const auto continues = [&](size_t i) { return (byte(i) & 0xC0U) == 0x80; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4 || !continues(1)) return 0;
  if (lead < 0xE0) return 2;
  // No longer forms of shorter characters, no surrogates, nothing past U+10FFFF.
  if ((lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xED && byte(1) > 0x9F)) return 0;
  if ((lead == 0xF0 && byte(1) < 0x90) || (lead == 0xF4 && byte(1) > 0x8F) || !continues(2)) return 0;
  if (lead < 0xF0) return 3;
  return continues(3) ? 4 : 0;
}

// Appends a part of a message, its controls and broken characters written out.
void append_readable(std::string_view text, std::string& out) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (size_t pos = 0; pos < text.size();) {
    const auto byte = static_cast<unsigned char>(text[pos]);
    const size_t bytes = character_bytes(text, pos);
    if (byte == '\n') {
      out += "\\n";
    } else if (bytes == 0 || byte < 0x20 || byte == 0x7F) {
      out += "\\x";
      out += kDigits[byte >> 4];
      out += kDigits[byte & 15];
    } else {
      out += text.substr(pos, bytes);
    }
    pos += bytes > 0 ? bytes : 1;
  }
}

bool continues_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80; }

std::string one_line(std::string_view message) {
  std::string line;
  if (message.size() <= kMaxHeadBytes + kMaxTailBytes) {
    append_readable(message, line);
    return line;
  }
  // Characters are left whole, where they are.
  size_t head = kMaxHeadBytes, tail = message.size() - kMaxTailBytes;
  for (int i = 0; i < 3 && continues_character(message[head]); ++i) --head;
  for (int i = 0; i < 3 && continues_character(message[tail]); ++i) ++tail;
  append_readable(message.substr(0, head), line);
  line += "[...]";
  append_readable(message.substr(tail), line);
  return line;
}

}  // namespace

Error::Error(const std::string& message) : std::runtime_error(one_line(message)) {}

// Out of line, so that each class has one home for its type information.
Error::~Error() = default;
InvalidArgument::~InvalidArgument() = default;
ResourceExhausted::~ResourceExhausted() = default;
InternalError::~InternalError() = default;

void fail_check(const char* condition, const char* file, int line, const std::string& evidence) {
  const char* name = std::strrchr(file, '/');
  std::string message = str("internal error at ", name ? name + 1 : file, ":", line, ": ", condition);
  if (!evidence.empty()) message += str(" (", evidence, ")");
  throw InternalError(message);
}

}  // namespace quire
