#include "device/staging_ring.h"

#include <utility>

#include "util/check.h"

namespace quire {

StagingRing::StagingRing(const DeviceRuntime& runtime, std::byte* device_memory, size_t bytes_per_step,
                         int32_t num_steps)
    : runtime_(runtime),
      bytes_per_step_(staged_bytes(bytes_per_step)),
      pinned_(make_pinned(runtime, device_bytes(bytes_per_step, num_steps))),
      device_memory_(device_memory),
      num_places_(static_cast<size_t>(num_steps)) {}

void StagingRing::begin_step() {
  place_ = (place_ + 1) % num_places_;
  host_ = static_cast<std::byte*>(pinned_.get()) + place_ * bytes_per_step_;
  device_ = device_memory_ + place_ * bytes_per_step_;
  used_ = sent_ = 0;
}

size_t StagingRing::take(size_t bytes) {
  QUIRE_CHECK(bytes <= available(), "a step sends more than ", bytes_per_step_, " bytes");
  const size_t offset = used_;
  used_ += staged_bytes(bytes);
  return offset;
}

PinnedBytes StagingRing::take_unsent() {
  const size_t begin = std::exchange(sent_, used_);
  return {device_ + begin, host_ + begin, used_ - begin};
}

void StagingRing::send(void* stream) {
  const PinnedBytes bytes = take_unsent();
  if (bytes.count == 0) return;
  check_device(runtime_, runtime_.copy(bytes.to, bytes.from, bytes.count, stream), "sending a step's inputs");
}

void StagingRing::rewind(size_t mark, void* stream) {
  QUIRE_CHECK(sent_ == used_ && mark <= used_, "what was pushed is not sent yet");
  check_device(runtime_, runtime_.synchronize_stream(stream), "waiting for the device");
  used_ = sent_ = mark;
}

}  // namespace quire
