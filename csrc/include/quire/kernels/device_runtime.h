// What a device offers besides kernels: memory, copies, streams, events, graphs. A table of functions, so
// that a build without CUDA needs no stubs. Each returns 0, or a code that error_text explains. Streams and
// events are the driver's own handles. Thread-safe; `select` comes first on every thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire {

struct DeviceRuntime {
  const char* backend;  // the kernel tables' name: "cuda"

  const char* (*error_text)(int code);
  int (*select)(int32_t device);
  int (*memory_info)(size_t* free_bytes, size_t* total_bytes);
  int (*synchronize)();

  int (*allocate)(void** data, size_t bytes);
  int (*release)(void* data);
  // Memory whose addresses stay its own while it is gone: `unmap` gives it back to the device, and waits for
  // nobody who uses it; `map` takes as much again, with unspecified contents. *memory is what the other three
  // take. Where a driver cannot do that, `unmap` fails.
  int (*allocate_mapped)(void** memory, void** data, size_t bytes);
  int (*unmap)(void* memory);
  int (*map)(void* memory);
  int (*release_mapped)(void* memory);
  // Host memory that copies run at full speed from, and that kernels read and write at the same address.
  int (*allocate_pinned)(void** data, size_t bytes);
  int (*release_pinned)(void* data);

  // Whether kernels on `device` can read and write the memory of `peer`.
  int (*can_access_peer)(bool* can, int32_t device, int32_t peer);
  // Whether what is between them does atomic operations by itself, as NVLink does and PCIe does not.
  int (*has_native_atomics)(bool* has, int32_t device, int32_t peer);
  // Memory of `device`, zero at first, that kernels on the `peers` read and write too, at the same address.
  // *shared is what release_shared takes. Both select `device` on this thread.
  int (*allocate_shared)(void** shared, void** data, size_t bytes, int32_t device, const int32_t* peers,
                         int32_t num_peers);
  int (*release_shared)(void* shared);

  // Enqueued; either side may be the host's. Overlaps the host only when that side is pinned.
  int (*copy)(void* to, const void* from, size_t bytes, void* stream);
  int (*fill)(void* data, int byte, size_t bytes, void* stream);

  int (*create_stream)(void** stream);
  int (*destroy_stream)(void* stream);
  int (*synchronize_stream)(void* stream);

  int (*create_event)(void** event, bool timed);
  int (*destroy_event)(void* event);
  int (*record_event)(void* event, void* stream);
  int (*synchronize_event)(void* event);
  int (*wait_event)(void* event, void* stream);  // what `stream` is given from now on waits for it
  int (*query_event)(void* event, bool* done);
  int (*elapsed_ms)(float* ms, void* begin, void* end);

  // What `stream` is given between begin_capture and end_capture becomes a graph.
  int (*begin_capture)(void* stream);
  int (*end_capture)(void* stream, void** graph);  // also ends a capture that failed; then *graph is null
  int (*launch_graph)(void* graph, void* stream);
  // Between the two: the kernel that `stream` was given last, for LaunchContext::into once the graph is
  // there.
  int (*captured_node)(void* stream, void** node);
  // Whether launches of the graph from now on run that kernel, as they do at first.
  int (*enable_node)(void* graph, void* node, bool enabled);
  int (*destroy_graph)(void* graph);
};

// The runtime of this build for `backend`; null for "cpu", or without CUDA.
const DeviceRuntime* find_device_runtime(const char* backend);

}  // namespace quire
