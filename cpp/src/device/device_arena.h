// The memory a worker takes at start and keeps: weights, workspace, activations, KV cache.
#pragma once

#include <cstddef>
#include <memory>

#include "quire/kernels/device_runtime.h"

namespace quire {

// Hands memory out and takes none back: it goes with the arena, which outlives everything that uses it.
// Not thread-safe; one per worker.
class DeviceArena {
 public:
  // What every allocation begins at and, in `used`, is rounded up to.
  static constexpr size_t kAlignment = 256;
  static constexpr size_t rounded(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

  virtual ~DeviceArena() = default;
  // Zero-filled on the host, unspecified on a device. Throws ResourceExhausted when there is no more. The
  // address is not to be used when `bytes` is 0.
  virtual std::byte* allocate(size_t bytes) = 0;
  template <typename T>
  T* take(size_t count) {
    return reinterpret_cast<T*>(allocate(count * sizeof(T)));
  }
  // Bytes handed out, each allocation rounded: the same number in every kind of arena.
  size_t used() const { return used_; }
  // Bytes left; without bounds on the host.
  virtual size_t remaining() const = 0;

 protected:
  size_t used_ = 0;
};

// Host memory. Every allocation stands for itself, in huge pages where it is large; pages that are never
// touched cost nothing.
std::unique_ptr<DeviceArena> make_host_arena();

// No memory at all: only counts. The addresses are aligned and distinct, and must not be touched.
std::unique_ptr<DeviceArena> make_measuring_arena();

// `bytes` of the memory of the device selected on this thread, taken at once. Throws ResourceExhausted when
// the device has less, InternalError when it fails otherwise. `runtime` lives longer.
std::unique_ptr<DeviceArena> make_device_arena(const DeviceRuntime& runtime, size_t bytes);

}  // namespace quire
