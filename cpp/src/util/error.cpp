#include "quire/error.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "quire/utf8.h"
#include "util/check.h"

namespace quire {
namespace {

constexpr size_t kMaxHeadBytes = 1400, kMaxTailBytes = 600;  // of a message: what would do stands at its end

// Appends a part of a message, its controls and what is not UTF-8 written out.
void append_readable(std::string_view text, std::string& out) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  size_t valid_end = std::min(find_invalid_utf8(text), text.size());
  for (size_t pos = 0; pos < text.size(); ++pos) {
    const auto byte = static_cast<unsigned char>(text[pos]);
    if (byte == '\n') {
      out += "\\n";
    } else if (pos == valid_end || byte < 0x20 || byte == 0x7F) {
      out += "\\x";
      out += kDigits[byte >> 4];
      out += kDigits[byte & 15];
    } else {
      out += text[pos];
    }
    if (pos < valid_end) continue;
    const size_t invalid = find_invalid_utf8(text.substr(pos + 1));
    valid_end = invalid == std::string_view::npos ? text.size() : pos + 1 + invalid;
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
InvalidRequest::~InvalidRequest() = default;
ResourceExhausted::~ResourceExhausted() = default;
InternalError::~InternalError() = default;

void fail_check(const char* condition, const char* file, int line, const std::string& evidence) {
  const char* name = std::strrchr(file, '/');
  std::string message = str("internal error at ", name ? name + 1 : file, ":", line, ": ", condition);
  if (!evidence.empty()) message += str(" (", evidence, ")");
  throw InternalError(message);
}

}  // namespace quire
