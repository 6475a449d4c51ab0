#include "linear/bias.h"

#include "common/launch.h"
#include "common/types.cuh"

namespace quire::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void broadcast_bias_kernel(T* out, int64_t stride, const float* bias, int n) {
  const int column = blockIdx.x * kThreads + threadIdx.x;
  if (column >= n) return;
  out[blockIdx.y * stride + column] = from_float<T>(bias[column]);
}

}  // namespace

void broadcast_bias(const LaunchContext& ctx, TensorView out, const float* bias) {
  const auto n = static_cast<int>(out.shape[1]);
  // Rows are a dimension of at most 65535 blocks.
  for (int64_t row = 0; row < out.shape[0]; row += 65535) {
    const TensorView part = out.rows(row, std::min<int64_t>(65535, out.shape[0] - row));
    const dim3 grid(static_cast<unsigned>(ceil_div(n, kThreads)), static_cast<unsigned>(part.shape[0]));
    dispatch_float(out.dtype, [&](auto type) {
      using T = decltype(type);
      broadcast_bias_kernel<T><<<grid, kThreads, 0, stream_of(ctx)>>>(part.as<T>(), part.stride[0], bias, n);
    });
  }
  check_launch(ctx, "broadcast_bias", out);
}

}  // namespace quire::cuda
