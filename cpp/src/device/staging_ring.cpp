#include "device/staging_ring.h"

#include <algorithm>

#include "util/check.h"

namespace quire {

StagingRing::StagingRing(const DeviceRuntime& runtime, std::byte* device_memory, size_t bytes_per_step,
                         int32_t num_steps)
    : runtime_(runtime),
      bytes_per_step_(bytes_per_step),
      pinned_(make_pinned(runtime, device_bytes(bytes_per_step, num_steps))),
      device_memory_(device_memory),
      copies_(make_stream(runtime)),
      places_(static_cast<size_t>(num_steps)) {
  for (Place& place : places_) {
    place.copied = make_event(runtime);
    place.read = make_event(runtime);
  }
}

void StagingRing::begin_step() {
  place_ = (place_ + 1) % places_.size();
  host_ = static_cast<std::byte*>(pinned_.get()) + place_ * bytes_per_step_;
  device_ = device_memory_ + place_ * bytes_per_step_;
  used_ = sent_ = 0;
  if (places_[place_].in_use) {
    check_device(runtime_, runtime_.synchronize_event(places_[place_].read.get()),
                 "waiting for an earlier step");
  }
  places_[place_].in_use = false;
}

size_t StagingRing::take(size_t bytes) {
  QUIRE_CHECK(bytes <= available(), "a step sends more than ", bytes_per_step_, " bytes");
  const size_t offset = used_;
  used_ = std::min(bytes_per_step_, used_ + (bytes + 15) / 16 * 16);
  return offset;
}

void StagingRing::send(void* stream) {
  if (sent_ == used_) return;
  Place& place = places_[place_];
  check_device(runtime_, runtime_.copy(device_ + sent_, host_ + sent_, used_ - sent_, copies_.get()),
               "sending a step's inputs");
  check_device(runtime_, runtime_.record_event(place.copied.get(), copies_.get()), "recording an event");
  check_device(runtime_, runtime_.wait_event(stream, place.copied.get()), "waiting for an event");
  sent_ = used_;
}

void StagingRing::rewind(size_t mark, void* stream) {
  QUIRE_CHECK(sent_ == used_ && mark <= used_, "what was pushed is not sent yet");
  check_device(runtime_, runtime_.synchronize_stream(stream), "waiting for the device");
  used_ = sent_ = mark;
}

void StagingRing::end_step(void* stream) {
  check_device(runtime_, runtime_.record_event(places_[place_].read.get(), stream), "recording an event");
  places_[place_].in_use = true;
}

}  // namespace quire
