// The header of a file of packed weights, and how many bytes follow it: the first eight.
#include <cstring>
#include <string_view>

#include "quire/error.h"
#include "weights/packed_file.h"

namespace {

bool has_accepted = false, was_of_another_size = false, was_wrong_inside = false;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  uint64_t data_bytes = 0;
  if (size < sizeof data_bytes) return 0;
  std::memcpy(&data_bytes, data, sizeof data_bytes);
  const std::string_view text(reinterpret_cast<const char*>(data) + sizeof data_bytes,
                              size - sizeof data_bytes);
  try {
    const quire::PackedHeader header = quire::parse_packed_header(text, data_bytes, "fuzz");
    uint64_t total = 0;
    for (const uint64_t bytes : header.sections) total += quire::DeviceArena::rounded(bytes);
    if (total != data_bytes || header.rank < 0 || header.rank >= header.world_size) __builtin_trap();
    has_accepted = true;
  } catch (const quire::InvalidArgument& refused) {
    const std::string_view why = refused.what();
    was_of_another_size |= why.find("bytes of data") != why.npos;
    was_wrong_inside |= why.find("tensors") != why.npos || why.find("sections") != why.npos;
  }
  return 0;
}

extern "C" const char* fuzz_target_missed() {
  return !has_accepted          ? "a header that is accepted"
         : !was_of_another_size ? "a header of another file"
         : !was_wrong_inside    ? "a header that is wrong about a tensor or a section"
                                : nullptr;
}
