// What every launch of ours shares: the stream, and what is noted when it fails.
#pragma once

#include <cuda_runtime.h>

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

template <typename T>
constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}

}  // namespace quire::cuda
