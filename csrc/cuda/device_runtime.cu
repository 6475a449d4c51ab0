#include "quire/kernels/device_runtime.h"

#include <cuda_runtime.h>

#include <cstring>

namespace quire {
namespace {

cudaStream_t as_stream(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t as_event(void* event) { return static_cast<cudaEvent_t>(event); }

int end_capture(void* stream, void** out) {
  *out = nullptr;
  cudaGraph_t graph = nullptr;
  cudaError_t error = cudaStreamEndCapture(as_stream(stream), &graph);
  cudaGraphExec_t executable = nullptr;
  if (error == cudaSuccess) error = cudaGraphInstantiate(&executable, graph, 0);
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (error == cudaSuccess) {
    // Otherwise the first launch pays for it.
    error = cudaGraphUpload(executable, as_stream(stream));
    *out = executable;
  }
  return error;
}

constexpr DeviceRuntime kRuntime = {
    .backend = "cuda",
    .error_text = [](int code) { return cudaGetErrorString(static_cast<cudaError_t>(code)); },
    .select = [](int32_t device) -> int { return cudaSetDevice(device); },
    .memory_info = [](size_t* free, size_t* total) -> int { return cudaMemGetInfo(free, total); },
    .synchronize = []() -> int { return cudaDeviceSynchronize(); },
    .allocate = [](void** data, size_t bytes) -> int {
      const cudaError_t error = cudaMalloc(data, bytes);
      if (error != cudaSuccess)
        cudaGetLastError();  // the caller knows; the next launch's check must not see it
      return error;
    },
    .release = [](void* data) -> int { return cudaFree(data); },
    .allocate_pinned = [](void** data, size_t bytes) -> int {
      const cudaError_t error = cudaHostAlloc(data, bytes, cudaHostAllocPortable);
      if (error != cudaSuccess) cudaGetLastError();
      return error;
    },
    .release_pinned = [](void* data) -> int { return cudaFreeHost(data); },
    .copy = [](void* to, const void* from, size_t bytes, void* stream) -> int {
      return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, as_stream(stream));
    },
    .fill = [](void* data, int byte, size_t bytes, void* stream) -> int {
      return cudaMemsetAsync(data, byte, bytes, as_stream(stream));
    },
    .create_stream = [](void** stream) -> int {
      return cudaStreamCreateWithFlags(reinterpret_cast<cudaStream_t*>(stream), cudaStreamNonBlocking);
    },
    .destroy_stream = [](void* stream) -> int { return cudaStreamDestroy(as_stream(stream)); },
    .synchronize_stream = [](void* stream) -> int { return cudaStreamSynchronize(as_stream(stream)); },
    .create_event = [](void** event, bool timed) -> int {
      return cudaEventCreateWithFlags(reinterpret_cast<cudaEvent_t*>(event),
                                      timed ? cudaEventDefault : cudaEventDisableTiming);
    },
    .destroy_event = [](void* event) -> int { return cudaEventDestroy(as_event(event)); },
    .record_event = [](void* event, void* stream) -> int {
      return cudaEventRecord(as_event(event), as_stream(stream));
    },
    .wait_event = [](void* stream, void* event) -> int {
      return cudaStreamWaitEvent(as_stream(stream), as_event(event), 0);
    },
    .synchronize_event = [](void* event) -> int { return cudaEventSynchronize(as_event(event)); },
    .query_event = [](void* event, bool* done) -> int {
      const cudaError_t error = cudaEventQuery(as_event(event));
      *done = error == cudaSuccess;
      if (error != cudaErrorNotReady) return error;
      cudaGetLastError();
      return cudaSuccess;
    },
    .elapsed_ms = [](float* ms, void* begin, void* end) -> int {
      return cudaEventElapsedTime(ms, as_event(begin), as_event(end));
    },
    .begin_capture = [](void* stream) -> int {
      // Other threads of the process may allocate or load modules meanwhile.
      return cudaStreamBeginCapture(as_stream(stream), cudaStreamCaptureModeThreadLocal);
    },
    .end_capture = end_capture,
    .launch_graph = [](void* graph, void* stream) -> int {
      return cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), as_stream(stream));
    },
    .destroy_graph = [](void* graph) -> int {
      return cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph));
    },
};

}  // namespace

const DeviceRuntime* find_device_runtime(const char* backend) {
  return std::strcmp(backend, "cuda") == 0 ? &kRuntime : nullptr;
}

}  // namespace quire
