#include "tokenizer/utf8_stream.h"

namespace quire::text {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// The length of the character that a lead byte begins, or 0 if it begins none.
uint8_t length_of(unsigned char lead) {
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

}  // namespace

bool Utf8Stream::continues(unsigned char byte) const {
  unsigned char low = 0x80, high = 0xBF;
  if (num_held_ == 1) {
    // Keeps out overlong forms, surrogates and what lies beyond U+10FFFF.
    switch (static_cast<unsigned char>(held_[0])) {
      case 0xE0: low = 0xA0; break;
      case 0xED: high = 0x9F; break;
      case 0xF0: low = 0x90; break;
      case 0xF4: high = 0x8F; break;
      default: break;
    }
  }
  return byte >= low && byte <= high;
}

void Utf8Stream::append(std::string_view bytes, std::string& out) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    const auto byte = static_cast<unsigned char>(bytes[i]);
    if (num_held_ > 0) {
      if (continues(byte)) {
        held_[num_held_++] = bytes[i];
        if (num_held_ == length_) {
          out.append(held_, num_held_);
          num_held_ = 0;
        }
        continue;
      }
      out += kReplacement;
      num_held_ = 0;
    }
    if (byte < 0x80) {
      out += bytes[i];
    } else if ((length_ = length_of(byte)) > 0) {
      held_[0] = bytes[i];
      num_held_ = 1;
    } else {
      out += kReplacement;
    }
  }
}

void Utf8Stream::finish(std::string& out) {
  if (num_held_ > 0) out += kReplacement;
  num_held_ = 0;
}

}  // namespace quire::text
