// Bytes that claim to be a message: the first one says which. What is accepted must serialize to the same
// bytes.
#include <cstring>
#include <span>
#include <vector>

#include "messages/model_runner_output.h"
#include "quire/error.h"

namespace {

template <typename Message>
void round_trip(std::span<const std::byte> bytes) {
  try {
    const auto message = quire::deserialize<Message>(bytes);
    std::vector<std::byte> again;
    quire::serialize(message, again);
    (void)quire::deserialize<Message>(again);
  } catch (const quire::InvalidArgument&) {
    // Refused, as it should be.
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0: round_trip<quire::EngineCoreRequest>(bytes); break;
    case 1: round_trip<quire::SchedulerOutput>(bytes); break;
    case 2: round_trip<quire::ModelRunnerOutput>(bytes); break;
    default: round_trip<quire::EngineCoreOutputs>(bytes);
  }
  return 0;
}
