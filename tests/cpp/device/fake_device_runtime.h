// A device in host memory, as late as a device may be: what a stream is given happens only when someone waits
// for it, and reads its sources then. Whoever reuses a buffer without waiting sends the wrong bytes. With a
// seed it is late at random instead, so that what does not wait for another stream also happens before it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "quire/kernels/device_runtime.h"
#include "quire/kernels/launch_context.h"

namespace quire {

// What the fake has been told, and what it shall do. One for the process: a table of functions has no `this`.
struct FakeDevice {
  static constexpr int kOutOfMemory = 2, kBroken = 700;

  size_t free_bytes = size_t{1} << 40;  // of the device
  size_t free_pinned_bytes = size_t{1} << 40;
  int copies_until_failure = -1;        // -1: never
  bool has_peers = true;                // devices that read each other's memory
  bool has_native_atomics = true;       // between them
  int num_allocations = 0;              // of either kind, not yet released
  int num_handles = 0;                  // streams, events and graphs, not yet destroyed
  int num_host_waits = 0;               // for a stream or an event that was not done
  std::optional<std::mt19937> hurries;  // streams go on now and then, though nobody waits
};

class FakeDeviceRuntime {
 public:
  using Work = std::function<void()>;

  // Makes it new. No test may hold anything of it.
  static FakeDevice& reset() {
    const std::lock_guard lock(mutex());
    device() = FakeDevice();
    streams().clear();
    return device();
  }
  static const DeviceRuntime& table() {
    static const DeviceRuntime kTable = make_table();
    return kTable;
  }
  // What launching a kernel does.
  static void enqueue(void* stream, Work work) {
    const std::lock_guard lock(mutex());
    push(*static_cast<Stream*>(stream), std::move(work));
  }
  // The same, or what a kernel of a graph does from now on.
  static void enqueue(const LaunchContext& ctx, Work work) {
    if (ctx.into == nullptr) return enqueue(ctx.stream, std::move(work));
    const std::lock_guard lock(mutex());
    static_cast<Graph*>(ctx.into->graph)->node(ctx.into->node).work = std::move(work);
  }

 private:
  struct Node {
    Work work;
    bool is_enabled = true;
  };
  struct Graph {
    std::vector<Node> nodes;
    // By number, from 1.
    Node& node(void* number) { return nodes.at(reinterpret_cast<uintptr_t>(number) - 1); }
  };
  struct Stream {
    std::deque<Work> pending;
    size_t num_done = 0;
    Graph* capture = nullptr;
    size_t end() const { return num_done + pending.size(); }
  };
  struct Event {
    Stream* stream = nullptr;
    size_t at = 0;  // work of the stream that comes before it
  };
  // Memory begins with its size.
  static constexpr size_t kHeader = 256;

  static FakeDevice& device() {
    static FakeDevice fake;
    return fake;
  }
  static std::vector<Stream*>& streams() {
    static std::vector<Stream*> all;
    return all;
  }
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }

  static void push(Stream& stream, Work work) {
    if (stream.capture != nullptr) {
      stream.capture->nodes.push_back({std::move(work)});
      return;
    }
    stream.pending.push_back(std::move(work));
    hurry();
  }
  static void run(Stream& stream, size_t until) {
    while (stream.num_done < until) {
      const Work work = std::move(stream.pending.front());
      stream.pending.pop_front();
      ++stream.num_done;
      work();
    }
  }
  static void hurry() {
    if (!device().hurries || streams().empty()) return;
    std::mt19937& random = *device().hurries;
    if (random() % 8 != 0) return;
    Stream& stream = *streams()[random() % streams().size()];
    // All that it was given, as often as less.
    run(stream, random() % 2 == 0 ? stream.end() : stream.num_done + random() % (stream.pending.size() + 1));
  }
  static void wait(Stream& stream, size_t until) {
    device().num_host_waits += stream.num_done < until;
    run(stream, until);
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
  // Memory that comes and goes behind its address, filled with what nobody has written.
  struct Mapped {
    std::byte* data = nullptr;
    size_t bytes = 0;
    bool is_mapped = false;
  };
  static int map(void* handle) {
    const std::lock_guard lock(mutex());
    auto& memory = *static_cast<Mapped*>(handle);
    if (memory.is_mapped) return 0;
    if (memory.bytes > device().free_bytes) return FakeDevice::kOutOfMemory;
    device().free_bytes -= memory.bytes;
    memory.is_mapped = true;
    std::memset(memory.data, 0xCD, memory.bytes);
    return 0;
  }
  static int unmap(void* handle) {
    const std::lock_guard lock(mutex());
    auto& memory = *static_cast<Mapped*>(handle);
    if (!memory.is_mapped) return 0;
    device().free_bytes += memory.bytes;
    memory.is_mapped = false;
    std::memset(memory.data, 0xEE, memory.bytes);
    return 0;
  }
  static int release_mapped(void* handle) {
    unmap(handle);
    auto* memory = static_cast<Mapped*>(handle);
    std::free(memory->data);
    delete memory;
    const std::lock_guard lock(mutex());
    --device().num_allocations;
    return 0;
  }
  static int allocate_mapped(void** handle, void** data, size_t bytes) {
    auto* memory = new Mapped{nullptr, bytes, false};
    memory->data =
        static_cast<std::byte*>(std::aligned_alloc(kHeader, (bytes + kHeader - 1) / kHeader * kHeader));
    if (const int code = map(memory); code != 0) {
      std::free(memory->data);
      delete memory;
      return code;
    }
    *handle = memory;
    *data = memory->data;
    const std::lock_guard lock(mutex());
    ++device().num_allocations;
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

  static void add_memory(DeviceRuntime& table) {
    table.memory_info = [](size_t* free, size_t* total) {
      const std::lock_guard lock(mutex());
      *free = *total = device().free_bytes;
      return 0;
    };
    table.allocate = [](void** data, size_t bytes) { return take(&FakeDevice::free_bytes, data, bytes); };
    table.release = [](void* data) { return give_back(&FakeDevice::free_bytes, data); };
    table.allocate_mapped = allocate_mapped;
    table.unmap = unmap;
    table.map = map;
    table.release_mapped = release_mapped;
    table.allocate_pinned = [](void** data, size_t bytes) {
      return take(&FakeDevice::free_pinned_bytes, data, bytes);
    };
    table.release_pinned = [](void* data) { return give_back(&FakeDevice::free_pinned_bytes, data); };
    table.can_access_peer = [](bool* can, int32_t, int32_t) {
      const std::lock_guard lock(mutex());
      *can = device().has_peers;
      return 0;
    };
    table.has_native_atomics = [](bool* has, int32_t, int32_t) {
      const std::lock_guard lock(mutex());
      *has = device().has_native_atomics;
      return 0;
    };
    table.allocate_shared = [](void** shared, void** data, size_t bytes, int32_t, const int32_t*, int32_t) {
      const int code = take(&FakeDevice::free_bytes, shared, bytes);
      if (code != 0) return code;
      std::memset(*shared, 0, bytes);
      *data = *shared;
      return 0;
    };
    table.release_shared = [](void* data) { return give_back(&FakeDevice::free_bytes, data); };
    table.copy = [](void* to, const void* from, size_t bytes, void* stream) {
      const std::lock_guard lock(mutex());
      if (device().copies_until_failure == 0) return FakeDevice::kBroken;
      if (device().copies_until_failure > 0) --device().copies_until_failure;
      push(*static_cast<Stream*>(stream), [=] { std::memcpy(to, from, bytes); });
      return 0;
    };
    table.fill = [](void* data, int byte, size_t bytes, void* stream) {
      enqueue(stream, [=] { std::memset(data, byte, bytes); });
      return 0;
    };
  }

  static void add_streams(DeviceRuntime& table) {
    table.create_stream = [](void** handle) {
      const int code = create<Stream>(handle);
      const std::lock_guard lock(mutex());
      streams().push_back(static_cast<Stream*>(*handle));
      return code;
    };
    table.destroy_stream = [](void* handle) {
      {
        const std::lock_guard lock(mutex());
        std::erase(streams(), static_cast<Stream*>(handle));
      }
      return destroy<Stream>(handle);
    };
    table.synchronize_stream = [](void* handle) {
      const std::lock_guard lock(mutex());
      auto& stream = *static_cast<Stream*>(handle);
      if (stream.capture != nullptr) return FakeDevice::kBroken;
      wait(stream, stream.end());
      return 0;
    };
    table.synchronize = [] {
      const std::lock_guard lock(mutex());
      for (Stream* stream : streams()) wait(*stream, stream->end());
      return 0;
    };
  }

  static void add_events(DeviceRuntime& table) {
    table.create_event = [](void** event, bool) { return create<Event>(event); };
    table.destroy_event = destroy<Event>;
    table.record_event = [](void* handle, void* stream_handle) {
      const std::lock_guard lock(mutex());
      auto& stream = *static_cast<Stream*>(stream_handle);
      if (stream.capture != nullptr) return FakeDevice::kBroken;
      *static_cast<Event*>(handle) = {&stream, stream.end()};
      hurry();
      return 0;
    };
    table.synchronize_event = [](void* handle) {
      const std::lock_guard lock(mutex());
      const auto& event = *static_cast<Event*>(handle);
      if (event.stream != nullptr) wait(*event.stream, event.at);
      return 0;
    };
    table.wait_event = [](void* handle, void* stream_handle) {
      const std::lock_guard lock(mutex());
      const Event event = *static_cast<Event*>(handle);
      push(*static_cast<Stream*>(stream_handle), [event] {
        if (event.stream != nullptr) run(*event.stream, event.at);
      });
      return 0;
    };
    table.query_event = [](void* handle, bool* done) {
      const std::lock_guard lock(mutex());
      hurry();
      const auto& event = *static_cast<Event*>(handle);
      *done = event.stream == nullptr || event.stream->num_done >= event.at;
      return 0;
    };
    table.elapsed_ms = [](float* ms, void*, void*) {
      *ms = 0;
      return 0;
    };
  }

  static void add_graphs(DeviceRuntime& table) {
    table.begin_capture = [](void* stream) {
      const std::lock_guard lock(mutex());
      auto& capture = static_cast<Stream*>(stream)->capture;
      if (capture != nullptr) return FakeDevice::kBroken;
      capture = new Graph;
      ++device().num_handles;
      return 0;
    };
    table.end_capture = [](void* stream, void** graph) {
      const std::lock_guard lock(mutex());
      *graph = std::exchange(static_cast<Stream*>(stream)->capture, nullptr);
      return *graph == nullptr ? FakeDevice::kBroken : 0;
    };
    table.launch_graph = [](void* graph, void* stream) {
      const std::lock_guard lock(mutex());
      for (const Node& node : static_cast<Graph*>(graph)->nodes)
        if (node.is_enabled) push(*static_cast<Stream*>(stream), node.work);
      return 0;
    };
    table.captured_node = [](void* stream, void** node) {
      const std::lock_guard lock(mutex());
      const Graph* const capture = static_cast<Stream*>(stream)->capture;
      if (capture == nullptr || capture->nodes.empty()) return FakeDevice::kBroken;
      *node = reinterpret_cast<void*>(static_cast<uintptr_t>(capture->nodes.size()));
      return 0;
    };
    table.enable_node = [](void* graph, void* node, bool enabled) {
      const std::lock_guard lock(mutex());
      static_cast<Graph*>(graph)->node(node).is_enabled = enabled;
      return 0;
    };
    table.destroy_graph = destroy<Graph>;
  }

  static DeviceRuntime make_table() {
    DeviceRuntime table{};
    table.backend = "fake";
    table.error_text = [](int code) {
      return code == FakeDevice::kOutOfMemory ? "out of memory" : "it broke";
    };
    table.select = [](int32_t) { return 0; };
    add_memory(table);
    add_streams(table);
    add_events(table);
    add_graphs(table);
    return table;
  }
};

}  // namespace quire
