// A device's streams, events, graphs and pinned memory, owned. Errors of the runtime become exceptions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "quire/kernels/device_runtime.h"
#include "quire/kernels/launch_context.h"

namespace quire {

// Throws InternalError "<what>: <the runtime's words>" unless `code` is 0.
void check_device(const DeviceRuntime& runtime, int code, const char* what);
// Throws InternalError when a launch has failed.
void check_launches(const LaunchError& error);

// A handle of the runtime's, given back at the end. `kRelease` is the runtime's function for that.
template <int (*DeviceRuntime::*kRelease)(void*)>
class DeviceHandle {
 public:
  DeviceHandle() = default;
  DeviceHandle(const DeviceRuntime& runtime, void* handle) : runtime_(&runtime), handle_(handle) {}
  DeviceHandle(DeviceHandle&& other) noexcept
      : runtime_(other.runtime_), handle_(std::exchange(other.handle_, nullptr)) {}
  DeviceHandle& operator=(DeviceHandle&& other) noexcept {
    std::swap(runtime_, other.runtime_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  // A device that has failed cannot give anything back: its answer is not asked for.
  ~DeviceHandle() {
    if (handle_ != nullptr) (runtime_->*kRelease)(handle_);
  }

  void* get() const { return handle_; }
  explicit operator bool() const { return handle_ != nullptr; }

 private:
  const DeviceRuntime* runtime_ = nullptr;
  void* handle_ = nullptr;
};

using DeviceStream = DeviceHandle<&DeviceRuntime::destroy_stream>;
using DeviceEvent = DeviceHandle<&DeviceRuntime::destroy_event>;
using DeviceGraph = DeviceHandle<&DeviceRuntime::destroy_graph>;
using PinnedMemory = DeviceHandle<&DeviceRuntime::release_pinned>;
using SharedDeviceMemory = DeviceHandle<&DeviceRuntime::release_shared>;
using DeviceMemory = DeviceHandle<&DeviceRuntime::release>;

DeviceStream make_stream(const DeviceRuntime& runtime);
DeviceEvent make_event(const DeviceRuntime& runtime, bool timed = false);
// Throws ResourceExhausted with the size.
PinnedMemory make_pinned(const DeviceRuntime& runtime, size_t bytes);

}  // namespace quire
