// The memory a worker takes at start and keeps: weights, workspace, activations, KV cache.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "quire/export.h"
#include "quire/kernels/device_runtime.h"

namespace quire QUIRE_MODEL_API {

// Hands memory out and takes none back: it goes with the arena, which outlives everything that uses it. It
// may go away meanwhile, and come back at the same addresses. Not thread-safe.
class DeviceArena {
 public:
  // What every allocation begins at and, in `used`, is rounded up to.
  static constexpr size_t kAlignment = 256;
  static constexpr size_t rounded(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

  virtual ~DeviceArena() = default;
  // Zero-filled on the host, unspecified on a device. Throws ResourceExhausted when there is no more. The
  // address is not to be used when `bytes` is 0.
  virtual std::byte* allocate(size_t bytes) = 0;
  // For what is computed from the configuration, and so is in no file of weights. Throws as `allocate`.
  virtual std::byte* allocate_computed(size_t bytes) { return computed(allocate(bytes)); }
  template <typename T>
  T* take(size_t count) {
    return reinterpret_cast<T*>(allocate(count * sizeof(T)));
  }
  // Bytes handed out, each allocation rounded: the same number in every kind of arena.
  size_t used() const { return used_; }
  // Bytes left; without bounds on the host.
  virtual size_t remaining() const = 0;

  // Gives all memory back to the machine, or the device, until `restore`; the addresses stay. What is in it
  // is lost, and nobody may use it. Throws InternalError when the device cannot. Does nothing the second
  // time.
  virtual void discard() = 0;
  // Takes it again; its contents are as after `allocate`. Throws ResourceExhausted when there is no more.
  virtual void restore() = 0;
  // Throws, naming the file, when memory that is a file's is not what it was. Thread-safe; allocates nothing
  // when all is well.
  virtual void check() const {}
  // What was handed out, in order.
  struct Allocation {
    std::byte* data;
    size_t bytes;
    bool is_computed = false;
  };
  const std::vector<Allocation>& allocations() const { return allocations_; }
  // All that was handed out as one run of memory, where it is one that the host cannot read; else empty.
  virtual std::span<std::byte> device_memory() const { return {}; }

 protected:
  std::byte* handed_out(std::byte* data, size_t bytes) {
    used_ += rounded(bytes);
    allocations_.push_back({data, bytes});
    return data;
  }

  // What was handed out last.
  std::byte* computed(std::byte* data) {
    if (!allocations_.empty()) allocations_.back().is_computed = true;
    return data;
  }

  size_t used_ = 0;

 private:
  std::vector<Allocation> allocations_;
};

// Host memory. Every allocation stands for itself, in huge pages where it is large; pages that are never
// touched cost nothing.
std::unique_ptr<DeviceArena> make_host_arena();

// No memory at all: only counts. The addresses are aligned and distinct, and must not be touched.
std::unique_ptr<DeviceArena> make_measuring_arena();

// `bytes` of the memory of the device selected on this thread, taken at once. Throws ResourceExhausted when
// the device has less, InternalError when it fails otherwise. `runtime` lives longer.
std::unique_ptr<DeviceArena> make_device_arena(const DeviceRuntime& runtime, size_t bytes);

// No memory of its own: hands out again what `arena` did, in the same order, so that a model that is built
// anew lies where the first one did. Throws InternalError when it is asked for anything else. `arena` lives
// longer.
std::unique_ptr<DeviceArena> make_replaying_arena(const DeviceArena& arena);

}  // namespace quire
