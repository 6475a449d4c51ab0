// What the host tells the device in a step: written into pinned memory, brought to the device at once.
#pragma once

#include <cstdint>

#include "device/runtime_handles.h"
#include "quire/kernels/batch_ops.h"

namespace quire {

// Values in two places: where the host writes and where kernels read them.
template <typename T>
struct Staged {
  T* host = nullptr;
  T* device = nullptr;
};

inline constexpr size_t kStagingAlignment = 16;
constexpr size_t staged_bytes(size_t bytes) {
  return (bytes + kStagingAlignment - 1) / kStagingAlignment * kStagingAlignment;
}

// Pushes without memory: counts what a step stages when the code that stages it is given this instead of a
// StagingRing.
class StagingMeter {
 public:
  template <typename T>
  Staged<T> push(size_t count) {
    bytes_ += staged_bytes(count * sizeof(T));
    return {};
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};

// Several steps' worth of memory, used in turn, so that the host may write a step's while the device still
// reads those before. Not thread-safe.
class StagingRing {
 public:
  // `device_memory` has room for device_bytes(bytes_per_step, num_steps), and is 16-byte aligned.
  StagingRing(const DeviceRuntime& runtime, std::byte* device_memory, size_t bytes_per_step,
              int32_t num_steps);

  static size_t device_bytes(size_t bytes_per_step, int32_t num_steps) {
    return staged_bytes(bytes_per_step) * static_cast<size_t>(num_steps);
  }

  const DeviceRuntime& runtime() const { return runtime_; }

  // Takes the next place. By now the device is done with the step that had it, `num_steps` before.
  void begin_step();
  // Room for `count` values, 16-byte aligned; throws InternalError when the step has none left.
  template <typename T>
  Staged<T> push(size_t count) {
    const size_t offset = take(count * sizeof(T));
    return {reinterpret_cast<T*>(host_ + offset), reinterpret_cast<T*>(device_ + offset)};
  }
  // Bytes left for this step.
  size_t available() const { return bytes_per_step_ - used_; }
  size_t num_unsent() const { return used_ - sent_; }  // bytes
  // What was pushed and not yet sent, for a kernel that brings it; it counts as sent.
  PinnedBytes take_unsent();
  // Copies it instead: what is enqueued on `stream` from now on sees it.
  void send(void* stream);
  // For more than fits at once: what was pushed since `mark` was sent, and read by what `stream` was given;
  // waits for that and takes the room back.
  size_t mark() const { return used_; }
  void rewind(size_t mark, void* stream);

 private:
  size_t take(size_t bytes);

  const DeviceRuntime& runtime_;
  size_t bytes_per_step_;
  PinnedMemory pinned_;
  std::byte* device_memory_;
  size_t num_places_, place_ = 0;
  std::byte *host_ = nullptr, *device_ = nullptr;  // of the place at hand
  size_t used_ = 0, sent_ = 0;
};

}  // namespace quire
