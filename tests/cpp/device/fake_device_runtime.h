// A device in host memory, as late as a device may be: a copy happens only when someone waits for it, and
// reads its source then. Whoever reuses a buffer without waiting sends the wrong bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>

#include "quire/kernels/device_runtime.h"

namespace quire {

// What the fake has been told, and what it shall do. One for the process: a table of functions has no `this`.
struct FakeDevice {
  static constexpr int kOutOfMemory = 2, kBroken = 700;

  size_t free_bytes = size_t{1} << 40;  // of the device
  size_t free_pinned_bytes = size_t{1} << 40;
  int copies_until_failure = -1;  // -1: never
  int num_allocations = 0;        // of either kind, not yet released
  int num_handles = 0;            // streams and events, not yet destroyed
};

class FakeDeviceRuntime {
 public:
  // As new. No test may hold anything of it.
  static FakeDevice& reset() {
    const std::lock_guard lock(mutex());
    device() = FakeDevice();
    return device();
  }
  static const DeviceRuntime& table() {
    static const DeviceRuntime kTable = make_table();
    return kTable;
  }

 private:
  struct Copy {
    void* to;
    const void* from;
    size_t bytes;
  };
  struct Stream {
    std::deque<Copy> pending;
    size_t num_done = 0;
  };
  struct Event {
    Stream* stream = nullptr;
    size_t at = 0;  // copies of the stream that come before it
  };
  // Memory begins with its size.
  static constexpr size_t kHeader = 256;

  static FakeDevice& device() {
    static FakeDevice fake;
    return fake;
  }
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static void run(Stream& stream, size_t until) {
    for (; stream.num_done < until; ++stream.num_done) {
      const Copy copy = stream.pending.front();
      stream.pending.pop_front();
      std::memcpy(copy.to, copy.from, copy.bytes);
    }
  }
  static int take(size_t FakeDevice::* free, void** data, size_t bytes) {
    const std::lock_guard lock(mutex());
    if (bytes > device().*free) return FakeDevice::kOutOfMemory;
    auto* block =
        static_cast<std::byte*>(std::aligned_alloc(kHeader, (bytes + 2 * kHeader - 1) / kHeader * kHeader));
    std::memcpy(block, &bytes, sizeof bytes);
    std::memset(block + kHeader, 0xCD, bytes);
    device().*free -= bytes;
    ++device().num_allocations;
    *data = block + kHeader;
    return 0;
  }
  static int give_back(size_t FakeDevice::* free, void* data) {
    const std::lock_guard lock(mutex());
    std::byte* block = static_cast<std::byte*>(data) - kHeader;
    size_t bytes = 0;
    std::memcpy(&bytes, block, sizeof bytes);
    std::memset(block + kHeader, 0xEE, bytes);
    std::free(block);
    device().*free += bytes;
    --device().num_allocations;
    return 0;
  }
  template <typename T>
  static int create(void** handle) {
    const std::lock_guard lock(mutex());
    ++device().num_handles;
    *handle = new T;
    return 0;
  }
  template <typename T>
  static int destroy(void* handle) {
    const std::lock_guard lock(mutex());
    --device().num_handles;
    delete static_cast<T*>(handle);
    return 0;
  }

  static DeviceRuntime make_table() {
    DeviceRuntime table{};
    table.backend = "fake";
    table.error_text = [](int code) {
      return code == FakeDevice::kOutOfMemory ? "out of memory" : "it broke";
    };
    table.select = [](int32_t) { return 0; };
    table.memory_info = [](size_t* free, size_t* total) {
      const std::lock_guard lock(mutex());
      *free = *total = device().free_bytes;
      return 0;
    };
    table.allocate = [](void** data, size_t bytes) { return take(&FakeDevice::free_bytes, data, bytes); };
    table.release = [](void* data) { return give_back(&FakeDevice::free_bytes, data); };
    table.allocate_pinned = [](void** data, size_t bytes) {
      return take(&FakeDevice::free_pinned_bytes, data, bytes);
    };
    table.release_pinned = [](void* data) { return give_back(&FakeDevice::free_pinned_bytes, data); };
    table.copy = [](void* to, const void* from, size_t bytes, void* stream) {
      const std::lock_guard lock(mutex());
      if (device().copies_until_failure == 0) return FakeDevice::kBroken;
      if (device().copies_until_failure > 0) --device().copies_until_failure;
      static_cast<Stream*>(stream)->pending.push_back({to, from, bytes});
      return 0;
    };
    table.create_stream = create<Stream>;
    table.destroy_stream = destroy<Stream>;
    table.synchronize_stream = [](void* handle) {
      const std::lock_guard lock(mutex());
      auto& stream = *static_cast<Stream*>(handle);
      run(stream, stream.num_done + stream.pending.size());
      return 0;
    };
    table.create_event = [](void** event, bool) { return create<Event>(event); };
    table.destroy_event = destroy<Event>;
    table.record_event = [](void* handle, void* stream_handle) {
      const std::lock_guard lock(mutex());
      auto& stream = *static_cast<Stream*>(stream_handle);
      *static_cast<Event*>(handle) = {&stream, stream.num_done + stream.pending.size()};
      return 0;
    };
    table.synchronize_event = [](void* handle) {
      const std::lock_guard lock(mutex());
      const auto& event = *static_cast<Event*>(handle);
      if (event.stream) run(*event.stream, event.at);
      return 0;
    };
    return table;
  }
};

}  // namespace quire
