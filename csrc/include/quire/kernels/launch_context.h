// What a kernel launch needs besides its tensors.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire {

// How a CPU kernel spreads its work. The kernels do not own threads: the caller lends them through
// this table of one function (util/thread_pool.h provides one).
struct HostParallel {
  using Task = void (*)(void* arg, int32_t index, int32_t count);

  void* self = nullptr;
  int32_t num_threads = 1;
  // Calls task(arg, i, num_threads) once for each i in [0, num_threads), index 0 on the calling
  // thread, and returns when all have returned. Not reentrant. Tasks must not throw.
  void (*run)(void* self, Task task, void* arg) = nullptr;
};

// The first launch that failed, for ops cannot throw. What a kernel does wrong after its launch shows at the
// next synchronisation instead; with QUIRE_LAUNCH_BLOCKING=1 in the environment every launch waits, and it is
// noted here too.
struct LaunchError {
  bool failed = false;
  char text[512] = {};  // "rms_norm [2048, 4096] bfloat16: invalid configuration argument"
};

// A kernel of a captured graph, by what DeviceRuntime gave for both.
struct GraphNode {
  void* graph = nullptr;
  void* node = nullptr;
};

// One per worker; passed by reference into every op. An op only enqueues work on `stream`; on the CPU
// there is no stream and the work is done when the op returns.
struct LaunchContext {
  void* stream = nullptr;              // cudaStream_t, or null on the CPU
  void* state = nullptr;               // what KernelTable::create_state made, or null when it is null
  LaunchError* error = nullptr;        // devices only
  const HostParallel* host = nullptr;  // CPU backends only; null runs on the calling thread
  void* workspace = nullptr;           // scratch shared by all ops in turn, 64-byte aligned
  size_t workspace_bytes = 0;          // at least the largest *_workspace_bytes asked for
  // Not null: an op that is one kernel, and says that it does this, launches nothing. That kernel of the
  // graph does its work whenever the graph is launched from now on. Devices only.
  const GraphNode* into = nullptr;
  // Kernels begin when all in front have ended, whatever lets them start early: those of a graph that may be
  // left out, which then stand for nothing. Devices only.
  bool waits_for_all = false;
};

}  // namespace quire
