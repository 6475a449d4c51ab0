// Bytes that claim to be a flight recording, replayed: a damaged one is refused, whatever it says of itself.
#include <cstdint>
#include <span>

#include "quire/error.h"
#include "simulator/replay.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    quire::ReplayObserver nobody;
    const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
    (void)quire::replay(quire::Recording::parse(bytes), nobody);
  } catch (const quire::InvalidArgument&) {
    // Refused, as it should be.
  }
  return 0;
}
