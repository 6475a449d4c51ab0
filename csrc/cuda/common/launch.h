// What every launch of ours shares: the stream, and what is noted when it fails.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdarg>
#include <cstdint>

#include "quire/kernels/cuda_device.h"
#include "quire/kernels/launch_context.h"
#include "quire/kernels/tensor_view.h"

namespace quire::cuda {

inline cudaStream_t stream_of(const LaunchContext& ctx) { return static_cast<cudaStream_t>(ctx.stream); }

// After a launch: notes in ctx.error what the runtime says of it, under the kernel's name and shape, unless
// an earlier one failed already. With QUIRE_LAUNCH_BLOCKING=1 waits for the kernel first.
void check_launch(const LaunchContext& ctx, const char* kernel, TensorView shape);
[[gnu::format(printf, 3, 4)]] void check_launch(const LaunchContext& ctx, const char* kernel,
                                                const char* format, ...);
// Notes an error that is already known.
void note_error(const LaunchContext& ctx, const char* kernel, const char* shape, const char* error);

// Properties of the current device, read once for each, or of the one that is assumed on this thread.
using DeviceLimits = CudaDeviceLimits;
const DeviceLimits& device_limits();

// Whether kernels of launch_dependent (dependent_launch.cuh) start early on the current device: its code must
// have been compiled for that, and QUIRE_DEPENDENT_LAUNCHES=0 and QUIRE_LAUNCH_BLOCKING=1 say that they do
// not.
bool launches_overlap();
// Whether blocks can be in clusters on the current device: its code must have been compiled for that.
bool has_clusters();

// Whether a block that may have `max_bytes` of shared memory can have `bytes` of it dynamically; what the
// kernels declare statically is far less than the rest.
constexpr bool shared_memory_fits(int bytes, int max_bytes) {
  constexpr int kStaticBytes = 256;
  return bytes + kStaticBytes <= max_bytes;
}

// Lets a kernel have that much dynamic shared memory on the current device: once per device, of which
// `prepared` (one per kernel) has a bit each.
inline cudaError_t allow_shared_bytes(std::atomic<uint64_t>& prepared, const void* kernel, int bytes) {
  int device = 0;
  cudaGetDevice(&device);
  const uint64_t bit = uint64_t{1} << (device % 64);
  if ((prepared.load(std::memory_order_relaxed) & bit) != 0) return cudaSuccess;
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared);
  if (error == cudaSuccess) prepared.fetch_or(bit, std::memory_order_relaxed);
  return error;
}

// Of one kernel and one number of blocks: for each device one more than active_clusters, or 0.
struct KnownClusters {
  std::atomic<int> of_device[64];
};
// How many clusters of so many of the kernel's blocks the current device has room for at the same time, 0
// where it has none. Asked once for each device, after allow_shared_bytes.
int active_clusters(KnownClusters& known, const void* kernel, int cluster_blocks, int threads,
                    int shared_bytes);

// For kernels that wait for loads of what is read once: what is on its way to registers needs a place in the
// L1 cache, which is what shared memory leaves of one memory, and a kernel that does not say how to divide it
// finds it as the one before left it, after attention's nearly all shared. Asks for no more shared memory
// than the blocks take that fit on a multiprocessor, once per device and kernel.
void keep_l1_cache(std::atomic<uint64_t>& prepared, const void* kernel, unsigned threads,
                   size_t shared_bytes);

// Launches a kernel without dynamic shared memory, or gives its grid and arguments to ctx.into.
void launch_or_set(const LaunchContext& ctx, const void* kernel, dim3 grid, unsigned threads, void** args);
template <typename... Args>
void launch_or_set(const LaunchContext& ctx, void (*kernel)(Args...), dim3 grid, unsigned threads,
                   Args... args) {
  void* pointers[] = {&args...};
  launch_or_set(ctx, reinterpret_cast<const void*>(kernel), grid, threads, pointers);
}

template <typename T>
constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}

}  // namespace quire::cuda
