#include "linear_one_row.h"

#include "common/activation.cuh"
#include "common/row_stream.cuh"

namespace quire::cuda {
namespace {

// As stream_rows wants them.
template <typename T, typename Out>
struct LinearRows {
  const T* matrix;  // [n, depth]
  const T* x;       // [depth]
  const float* bias;
  Out* out;  // [n]
  int n, depth;
  int groups;
  static constexpr int segments = 1;

  __device__ void wait_for_weights() const {}
  __device__ const T* weight(int group, int /*segment*/, int r) const {
    return matrix + static_cast<int64_t>(min(group * row_stream::kRows + r, n - 1)) * depth;
  }
  __device__ const T* values(int /*group*/, int /*segment*/) const { return x; }
  __device__ float scale(int /*segment*/) const { return 1.0F; }
  __device__ void finish(int group, const float (&sums)[row_stream::kRows]) const {
#pragma unroll
    for (int r = 0; r < row_stream::kRows; ++r) {
      const int output = group * row_stream::kRows + r;
      if (output >= n) return;
      out[output] = from_float<Out>(sums[r] + (bias != nullptr ? bias[output] : 0.0F));
    }
  }
};

// The same of a gate and what it is a gate of: a group has two outputs, the gate's row and the other of each.
template <typename T>
struct GatedLinearRows {
  LinearRows<T, T> all;
  Activation activation;
  int groups, depth;
  static constexpr int segments = 1, kOutputs = row_stream::kRows / 2;

  __device__ int num_outputs() const { return all.n / 2; }
  __device__ int output(int group, int i) const { return group * kOutputs + i; }
  __device__ void wait_for_weights() const {}
  __device__ const T* weight(int group, int /*segment*/, int r) const {
    const int row = min(output(group, r / 2), num_outputs() - 1) + r % 2 * num_outputs();
    return all.matrix + static_cast<int64_t>(row) * depth;
  }
  __device__ const T* values(int /*group*/, int /*segment*/) const { return all.x; }
  __device__ float scale(int /*segment*/) const { return 1.0F; }
  __device__ void finish(int group, const float (&sums)[row_stream::kRows]) const {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) {
      const int at = output(group, i);
      if (at >= num_outputs()) return;
      const auto y = [&](int r) {
        const int row = at + r * num_outputs();
        return to_float(from_float<T>(sums[2 * i + r] + (all.bias != nullptr ? all.bias[row] : 0.0F)));
      };
      all.out[at] = from_float<T>(activate_gated(y(0), y(1), activation));
    }
  }
};

template <typename T>
__global__ void __launch_bounds__(row_stream::kThreads, row_stream::kBlocksPerSm)
    one_row_gated_kernel(const GatedLinearRows<T> rows) {
  let_next_start();
  stream_rows<T>(rows);
}

template <typename T, typename Out>
__global__ void __launch_bounds__(row_stream::kThreads, row_stream::kBlocksPerSm)
    one_row_kernel(const LinearRows<T, Out> rows) {
  let_next_start();
  stream_rows<T>(rows);
}

template <typename T, typename Out>
LinearRows<T, Out> rows_of(TensorView out, TensorView x, const LinearWeight& weight, const float* bias) {
  const auto n = static_cast<int>(weight.n);
  return {.matrix = static_cast<const T*>(weight.data),
          .x = static_cast<const T*>(x.data),
          .bias = bias,
          .out = static_cast<Out*>(out.data),
          .n = n,
          .depth = static_cast<int>(weight.k),
          .groups = ceil_div(n, row_stream::kRows)};
}

template <typename T, typename Out>
void launch(const LaunchContext& ctx, TensorView out, TensorView x, const LinearWeight& weight,
            const float* bias) {
  const auto rows = rows_of<T, Out>(out, x, weight, bias);
  launch_row_stream<one_row_kernel<T, Out>>(ctx, rows.groups, rows);
}

template <typename T>
void launch(const LaunchContext& ctx, TensorView out, TensorView x, const LinearWeight& weight,
            const float* bias) {
  if (out.dtype == DType::kFloat32) {
    launch<T, float>(ctx, out, x, weight, bias);
  } else {
    launch<T, T>(ctx, out, x, weight, bias);
  }
}

template <typename T>
void launch_gated(const LaunchContext& ctx, TensorView out, TensorView x, const LinearWeight& weight,
                  const float* bias, Activation activation) {
  const GatedLinearRows<T> rows = {
      .all = rows_of<T, T>(out, x, weight, bias),
      .activation = activation,
      .groups = ceil_div(static_cast<int>(weight.n / 2), GatedLinearRows<T>::kOutputs),
      .depth = static_cast<int>(weight.k)};
  launch_row_stream<one_row_gated_kernel<T>>(ctx, rows.groups, rows);
}

}  // namespace

bool has_one_row_kernel(TensorView out, TensorView x, const LinearWeight& weight) {
  const auto aligned = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  return x.shape[0] == 1 && weight.scales == nullptr && dtype_bytes(x.dtype) == 2 &&
         weight.dtype == x.dtype && (out.dtype == x.dtype || out.dtype == DType::kFloat32) &&
         weight.k % 8 == 0 && aligned(x.data) && aligned(weight.data);
}

void linear_one_row(const LaunchContext& ctx, TensorView out, TensorView x, const LinearWeight& weight,
                    const float* bias) {
  if (x.dtype == DType::kBFloat16) {
    launch<bf16>(ctx, out, x, weight, bias);
  } else {
    launch<fp16>(ctx, out, x, weight, bias);
  }
  check_launch(ctx, "linear_one_row", out);
}

void linear_one_row_gated(const LaunchContext& ctx, TensorView out, TensorView x, const LinearWeight& weight,
                          const float* bias, Activation activation) {
  if (x.dtype == DType::kBFloat16) {
    launch_gated<bf16>(ctx, out, x, weight, bias, activation);
  } else {
    launch_gated<fp16>(ctx, out, x, weight, bias, activation);
  }
  check_launch(ctx, "linear_one_row_gated", out);
}

}  // namespace quire::cuda
