#include "linear_one_row.h"

#include "common/dependent_launch.cuh"
#include "common/weight_stream.cuh"

namespace quire::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kOutputs = 2;    // of a warp, or of warps that share their depth
constexpr int kStep = 32 * 8;  // elements that a warp reads of a row at once
constexpr int kAhead = 8;      // steps whose loads are on their way at once

template <typename T>
struct OneRow {
  const T* weight;  // [n, k]
  const T* x;       // [k]
  const float* bias;
  void* out;  // [n]
  int n, k;
};

// kShare warps take stretches of the depth of the same two outputs; their sums are added in the warps' order.
// What a warp reads of the weight first is on its way before the kernel in front has ended: with many blocks
// to each multiprocessor that is a good part of a weight of a few megabytes.
template <typename T, typename Out, int kShare>
__global__ void __launch_bounds__(kThreads) one_row_kernel(const OneRow<T> p) {
  constexpr int kTeams = kWarps / kShare;
  __shared__ float parts[kWarps][kOutputs];
  let_next_start();
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int first = (static_cast<int>(blockIdx.x) * kTeams + warp / kShare) * kOutputs;
  const T* rows[kOutputs];
#pragma unroll
  for (int r = 0; r < kOutputs; ++r) rows[r] = p.weight + static_cast<int64_t>(min(first + r, p.n - 1)) * p.k;
  const auto start = [&](uint4(&weights)[kAhead][kOutputs], int at) {
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
#pragma unroll
      for (int r = 0; r < kOutputs; ++r)
        weights[j][r] = at + j * kStep < p.k ? load_weight(rows[r] + at + j * kStep) : uint4{};
    }
  };
  float sums[kOutputs] = {};
  int at = warp % kShare * kAhead * kStep + 8 * lane;
  uint4 weights[kAhead][kOutputs];
  start(weights, at);
  wait_for_inputs();
  while (at < p.k) {
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (at + j * kStep >= p.k) break;
      const Vec<T> x = Vec<T>::load(p.x + at + j * kStep);
#pragma unroll
      for (int r = 0; r < kOutputs; ++r) sums[r] = dot(sums[r], weights[j][r], x);
    }
    at += kShare * kAhead * kStep;
    if (at < p.k) start(weights, at);
  }
#pragma unroll
  for (int r = 0; r < kOutputs; ++r) {
    const float sum = warp_sum(sums[r]);
    if (lane == r) parts[warp][r] = sum;
  }
  if constexpr (kShare == 1) {
    __syncwarp();
  } else {
    __syncthreads();
  }
  const int output = first + lane;
  if (warp % kShare != 0 || lane >= kOutputs || output >= p.n) return;
  float sum = p.bias != nullptr ? p.bias[output] : 0.0F;
#pragma unroll
  for (int w = 0; w < kShare; ++w) sum += parts[warp + w][lane];
  static_cast<Out*>(p.out)[output] = from_float<Out>(sum);
}

template <typename T, typename Out>
void launch(const LaunchContext& ctx, const OneRow<T>& p) {
  const auto with_share = [&]<int kShare>() {
    constexpr int kBlockOutputs = kWarps / kShare * kOutputs;
    launch_dependent(ctx, one_row_kernel<T, Out, kShare>, static_cast<unsigned>(ceil_div(p.n, kBlockOutputs)),
                     kThreads, 0, p);
  };
  // The longer the rows, the fewer a block has: else the last blocks keep the others waiting.
  if (p.k <= kAhead * kStep) return with_share.template operator()<1>();
  if (p.k <= 2 * kAhead * kStep) return with_share.template operator()<2>();
  with_share.template operator()<4>();
}

template <typename T>
void launch(const LaunchContext& ctx, TensorView out, TensorView x, const LinearWeight& weight,
            const float* bias) {
  const OneRow<T> p = {static_cast<const T*>(weight.data), static_cast<const T*>(x.data), bias, out.data,
                       static_cast<int>(weight.n),         static_cast<int>(weight.k)};
  if (out.dtype == DType::kFloat32) {
    launch<T, float>(ctx, p);
  } else {
    launch<T, T>(ctx, p);
  }
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

}  // namespace quire::cuda
