// A safetensors file's bytes: the length, the header, the data.
#include <cstring>
#include <span>

#include "formats/safetensors.h"
#include "quire/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 8) return 0;
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, data, sizeof header_bytes);
  header_bytes = header_bytes > size - 8 ? size - 8 : header_bytes;  // the file reader's own check
  const char* header = reinterpret_cast<const char*>(data) + 8;
  const uint64_t data_bytes = size - 8 - header_bytes;
  try {
    const auto entries = quire::parse_safetensors_header({header, header_bytes}, data_bytes, "fuzz");
    uint64_t covered = 0;
    for (const auto& entry : entries) {
      if (entry.end > data_bytes || entry.begin > entry.end) __builtin_trap();
      covered += entry.end - entry.begin;
    }
    if (covered != data_bytes) __builtin_trap();
  } catch (const quire::InvalidArgument&) {
    // Refused, as it should be.
  }
  return 0;
}
