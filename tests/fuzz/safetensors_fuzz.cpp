// A safetensors file's bytes: the length, the header, the data. Once as they are, and once with the length
// that puts the end of the header where its last brace is: whatever is inserted moves it, and the reader
// would see no more than a torn document.
#include <cstring>
#include <span>
#include <string_view>

#include "formats/safetensors.h"
#include "quire/error.h"

namespace {

// What mutations must have reached, or they no longer test what they should.
bool has_accepted = false, was_too_deep = false, was_wrong_inside = false;

void parse(std::string_view file, size_t header_bytes) {
  const uint64_t data_bytes = file.size() - header_bytes;
  try {
    const auto entries = quire::parse_safetensors_header(file.substr(0, header_bytes), data_bytes, "fuzz");
    uint64_t covered = 0;
    for (const auto& entry : entries) {
      if (entry.end > data_bytes || entry.begin > entry.end) __builtin_trap();
      covered += entry.end - entry.begin;
    }
    if (covered != data_bytes) __builtin_trap();
    has_accepted = true;
  } catch (const quire::InvalidArgument& refused) {
    const std::string_view why = refused.what();
    was_too_deep |= why.find("deep") != why.npos;
    was_wrong_inside |= why.find("tensor '") != why.npos;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 8) return 0;
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, data, sizeof header_bytes);
  const std::string_view file(reinterpret_cast<const char*>(data) + 8, size - 8);
  parse(file, header_bytes > file.size() ? file.size() : header_bytes);  // the file reader's own check
  if (const size_t brace = file.rfind('}'); brace != file.npos) parse(file, brace + 1);
  return 0;
}

extern "C" const char* fuzz_target_missed() {
  return !has_accepted       ? "a file that is accepted"
         : !was_too_deep     ? "a header nested too deep"
         : !was_wrong_inside ? "a header that is wrong about a tensor"
                             : nullptr;
}
