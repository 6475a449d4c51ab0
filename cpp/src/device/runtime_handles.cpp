#include "device/runtime_handles.h"

#include "quire/error.h"
#include "util/str.h"

namespace quire {

void check_device(const DeviceRuntime& runtime, int code, const char* what) {
  if (code != 0) throw InternalError(str(runtime.backend, ": ", what, ": ", runtime.error_text(code)));
}

void check_launches(const LaunchError& error) {
  if (error.failed) throw InternalError(error.text);
}

DeviceStream make_stream(const DeviceRuntime& runtime) {
  void* handle = nullptr;
  check_device(runtime, runtime.create_stream(&handle), "making a stream");
  return {runtime, handle};
}

DeviceEvent make_event(const DeviceRuntime& runtime, bool timed) {
  void* handle = nullptr;
  check_device(runtime, runtime.create_event(&handle, timed), "making an event");
  return {runtime, handle};
}

PinnedMemory make_pinned(const DeviceRuntime& runtime, size_t bytes) {
  void* data = nullptr;
  if (const int code = runtime.allocate_pinned(&data, bytes)) {
    throw ResourceExhausted(
        str("cannot allocate ", bytes, " bytes of pinned memory: ", runtime.error_text(code)));
  }
  return {runtime, data};
}

}  // namespace quire
