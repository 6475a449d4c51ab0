#include "quire/kernels/device_runtime.h"

#include <cuda_runtime.h>

#include <cstring>

#include "common/captured_graph.h"
#include "mapped_memory.h"
#include "pinned_memory.h"

namespace quire {
namespace {

cudaStream_t as_stream(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t as_event(void* event) { return static_cast<cudaEvent_t>(event); }

// The caller is told; the next launch's check must not see it again. An error that stays is seen by all.
int code(cudaError_t error) {
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

int end_capture(void* stream, void** out) {
  *out = nullptr;
  cuda::CapturedGraph captured;
  cudaError_t error = cudaStreamEndCapture(as_stream(stream), &captured.graph);
  if (error == cudaSuccess) error = cuda::fill_by_kernels(captured.graph);
  if (error == cudaSuccess) error = cudaGraphInstantiate(&captured.executable, captured.graph, 0);
  if (error == cudaSuccess) {
    // Uploaded here, or the first launch would pay for it.
    error = cudaGraphUpload(captured.executable, as_stream(stream));
    *out = new cuda::CapturedGraph(captured);
  } else if (captured.graph != nullptr) {
    cudaGraphDestroy(captured.graph);
  }
  return code(error);
}

const cuda::CapturedGraph& as_graph(void* graph) { return *static_cast<const cuda::CapturedGraph*>(graph); }

int captured_node(void* stream, void** out) {
  *out = nullptr;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaGraphNode_t* nodes = nullptr;
  size_t count = 0;
#if CUDART_VERSION >= 13000
  const cudaError_t error =
      cudaStreamGetCaptureInfo(as_stream(stream), &status, nullptr, nullptr, &nodes, nullptr, &count);
#else
  const cudaError_t error =
      cudaStreamGetCaptureInfo_v2(as_stream(stream), &status, nullptr, nullptr, &nodes, &count);
#endif
  if (error != cudaSuccess) return code(error);
  if (status != cudaStreamCaptureStatusActive || count != 1) return cudaErrorInvalidValue;
  *out = nodes[0];
  return 0;
}

int destroy_graph(void* graph) {
  const auto* captured = static_cast<const cuda::CapturedGraph*>(graph);
  if (captured == nullptr) return 0;
  const cudaError_t error = cudaGraphExecDestroy(captured->executable);
  cudaGraphDestroy(captured->graph);
  delete captured;
  return code(error);
}

struct SharedMemory {
  cudaMemPool_t pool = nullptr;
  void* data = nullptr;
  int32_t device = 0;
};

int release_shared(void* handle) {
  auto* shared = static_cast<SharedMemory*>(handle);
  cudaError_t error = cudaSetDevice(shared->device);
  if (shared->data != nullptr && error == cudaSuccess) error = cudaFree(shared->data);
  if (shared->pool != nullptr && error == cudaSuccess) error = cudaMemPoolDestroy(shared->pool);
  delete shared;
  return code(error);
}

// A pool of its own gives the peers this memory and no other. Were all of a device's memory open to them,
// each allocation and release of anybody would concern every device, and might wait for what another one
// runs.
int allocate_shared(void** handle, void** data, size_t bytes, int32_t device, const int32_t* peers,
                    int32_t num_peers) {
  if (const cudaError_t error = cudaSetDevice(device); error != cudaSuccess) return code(error);
  auto* shared = new SharedMemory;
  shared->device = device;
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, device};
  cudaError_t error = cudaMemPoolCreate(&shared->pool, &properties);
  for (int32_t i = 0; i < num_peers && error == cudaSuccess; ++i) {
    if (peers[i] == device) continue;
    cudaMemAccessDesc access{};
    access.location = {cudaMemLocationTypeDevice, peers[i]};
    access.flags = cudaMemAccessFlagsProtReadWrite;
    error = cudaMemPoolSetAccess(shared->pool, &access, 1);
  }
  const cudaStream_t stream = cudaStreamPerThread;
  if (error == cudaSuccess) error = cudaMallocFromPoolAsync(&shared->data, bytes, shared->pool, stream);
  if (error == cudaSuccess) error = cudaMemsetAsync(shared->data, 0, bytes, stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  if (error != cudaSuccess) {
    release_shared(shared);
    return code(error);
  }
  *data = shared->data;
  *handle = shared;
  return 0;
}

constexpr DeviceRuntime kRuntime = {
    .backend = "cuda",
    .error_text = [](int code) { return cudaGetErrorString(static_cast<cudaError_t>(code)); },
    .select = [](int32_t device) -> int { return code(cudaSetDevice(device)); },
    .memory_info = [](size_t* free, size_t* total) -> int { return code(cudaMemGetInfo(free, total)); },
    .synchronize = []() -> int { return code(cudaDeviceSynchronize()); },
    .allocate = [](void** data, size_t bytes) -> int { return code(cudaMalloc(data, bytes)); },
    .release = [](void* data) -> int { return code(cudaFree(data)); },
    .allocate_mapped = allocate_mapped,
    .unmap = unmap_memory,
    .map = map_memory,
    .release_mapped = release_mapped,
    .allocate_pinned = [](void** data, size_t bytes) -> int { return code(allocate_pinned(data, bytes)); },
    .release_pinned = [](void* data) -> int { return code(release_pinned(data)); },
    .can_access_peer = [](bool* can, int32_t device, int32_t peer) -> int {
      int yes = 0;
      const cudaError_t error = cudaDeviceCanAccessPeer(&yes, device, peer);
      *can = yes != 0;
      return code(error);
    },
    .has_native_atomics = [](bool* has, int32_t device, int32_t peer) -> int {
      int yes = 0;
      const cudaError_t error =
          cudaDeviceGetP2PAttribute(&yes, cudaDevP2PAttrNativeAtomicSupported, device, peer);
      *has = yes != 0;
      return code(error);
    },
    .allocate_shared = allocate_shared,
    .release_shared = release_shared,
    .copy = [](void* to, const void* from, size_t bytes, void* stream) -> int {
      return code(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, as_stream(stream)));
    },
    .fill = [](void* data, int byte, size_t bytes, void* stream) -> int {
      return code(cudaMemsetAsync(data, byte, bytes, as_stream(stream)));
    },
    .create_stream = [](void** stream) -> int {
      return code(cudaStreamCreateWithFlags(reinterpret_cast<cudaStream_t*>(stream), cudaStreamNonBlocking));
    },
    .destroy_stream = [](void* stream) -> int { return code(cudaStreamDestroy(as_stream(stream))); },
    .synchronize_stream = [](void* stream) -> int { return code(cudaStreamSynchronize(as_stream(stream))); },
    .create_event = [](void** event, bool timed) -> int {
      return code(cudaEventCreateWithFlags(reinterpret_cast<cudaEvent_t*>(event),
                                           timed ? cudaEventDefault : cudaEventDisableTiming));
    },
    .destroy_event = [](void* event) -> int { return code(cudaEventDestroy(as_event(event))); },
    .record_event = [](void* event, void* stream) -> int {
      return code(cudaEventRecord(as_event(event), as_stream(stream)));
    },
    .synchronize_event = [](void* event) -> int { return code(cudaEventSynchronize(as_event(event))); },
    .wait_event = [](void* event, void* stream) -> int {
      return code(cudaStreamWaitEvent(as_stream(stream), as_event(event)));
    },
    .query_event = [](void* event, bool* done) -> int {
      const cudaError_t error = cudaEventQuery(as_event(event));
      *done = error == cudaSuccess;
      return code(error) == cudaErrorNotReady ? cudaSuccess : error;
    },
    .elapsed_ms = [](float* ms, void* begin, void* end) -> int {
      return code(cudaEventElapsedTime(ms, as_event(begin), as_event(end)));
    },
    .begin_capture = [](void* stream) -> int {
      // Other threads of the process may allocate or load modules meanwhile.
      return code(cudaStreamBeginCapture(as_stream(stream), cudaStreamCaptureModeThreadLocal));
    },
    .end_capture = end_capture,
    .launch_graph = [](void* graph, void* stream) -> int {
      return code(cudaGraphLaunch(as_graph(graph).executable, as_stream(stream)));
    },
    .captured_node = captured_node,
    .enable_node = [](void* graph, void* node, bool enabled) -> int {
      return code(cudaGraphNodeSetEnabled(as_graph(graph).executable, static_cast<cudaGraphNode_t>(node),
                                          enabled ? 1U : 0U));
    },
    .destroy_graph = destroy_graph,
};

}  // namespace

const DeviceRuntime* find_device_runtime(const char* backend) {
  return std::strcmp(backend, "cuda") == 0 ? &kRuntime : nullptr;
}

}  // namespace quire
