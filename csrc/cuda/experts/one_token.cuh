// The experts of one token: matrices times vectors, each weight read once. No plan is needed, and the second
// product adds the experts up. T is 16-bit, rows begin at multiples of 16 bytes.
#pragma once

#include "common/dependent_launch.cuh"
#include "experts/product.cuh"

namespace quire::cuda {

namespace one_token {

// Blocks are small, so that few are left over at the end.
constexpr int kGateUpWarps = 4;  // with an output each
constexpr int kDownWarps = 8;    // with all outputs of the block
constexpr int kOutputs = 2;
constexpr int kStep = 32 * 8;  // elements that a warp reads of a row at once
constexpr int kMaxUnits = 32;  // of choices and parts of their depth
constexpr int kAhead = 4;      // steps whose loads are on their way at once
static_assert(kMaxExpertsPerToken <= kMaxUnits);

}  // namespace one_token

template <typename T>
struct OneToken {
  const int32_t* expert_ids;            // [top_k]; -1: none
  const float* weights;                 // [top_k]
  const T* x;                           // [H]
  const T* gate_up;                     // [E][2 I, H]
  const T* down;                        // [E][H, I]
  int64_t gate_up_stride, down_stride;  // elements between experts
  const float *gate_up_bias, *down_bias;
  T* inner;  // [top_k, I]
  T* out;    // [H]
  int top_k, hidden, intermediate;
  Activation activation;
};

// Block (i, j): outputs of choice j, one for each warp.
template <typename T>
__global__ void __launch_bounds__(32 * one_token::kGateUpWarps)
    one_token_gate_up_kernel(const OneToken<T> p) {
  using namespace one_token;
  const int lane = static_cast<int>(threadIdx.x) % 32, choice = static_cast<int>(blockIdx.y);
  const int output = static_cast<int>(blockIdx.x) * kGateUpWarps + static_cast<int>(threadIdx.x) / 32;
  wait_for_inputs();
  // Not earlier: the next kernel reads the experts' numbers at once, which are there by now.
  let_next_start();
  const int expert = p.expert_ids[choice];
  if (expert < 0 || output >= p.intermediate) return;
  const T* gate = p.gate_up + expert * p.gate_up_stride + static_cast<int64_t>(output) * p.hidden;
  const T* up = gate + static_cast<int64_t>(p.intermediate) * p.hidden;
  float gate_sum = 0.0F, up_sum = 0.0F;
#pragma unroll 8
  for (int i = 8 * lane; i < p.hidden; i += kStep) {
    const uint4 g = load_weight(gate + i), u = load_weight(up + i);
    const Vec<T> x = Vec<T>::load(p.x + i);
    gate_sum = dot(gate_sum, g, x);
    up_sum = dot(up_sum, u, x);
  }
  gate_sum = warp_sum(gate_sum);
  up_sum = warp_sum(up_sum);
  if (lane != 0) return;
  if (p.gate_up_bias != nullptr) {
    const float* bias = p.gate_up_bias + static_cast<int64_t>(expert) * 2 * p.intermediate;
    gate_sum += bias[output];
    up_sum += bias[p.intermediate + output];
  }
  p.inner[static_cast<int64_t>(choice) * p.intermediate + output] =
      from_float<T>(activate_gated(gate_sum, up_sum, p.activation));
}

// A block has two outputs. Its warps share the experts, each of which is cut into `parts` of its depth.
template <typename T>
__global__ void __launch_bounds__(32 * one_token::kDownWarps)
    one_token_down_kernel(const OneToken<T> p, int parts, int part_depth) {
  using namespace one_token;
  __shared__ float sums[kMaxUnits][kOutputs];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int first = static_cast<int>(blockIdx.x) * kOutputs;
  let_next_start();
  bool waited = false;
  for (int unit = warp; unit < p.top_k * parts; unit += kDownWarps) {
    const int choice = unit / parts, begin = unit % parts * part_depth;
    const int end = min(begin + part_depth, p.intermediate);
    const int expert = __ldcg(p.expert_ids + choice);
    if (expert < 0) continue;
    const T* weight = p.down + expert * p.down_stride;
    const T* x = p.inner + static_cast<int64_t>(choice) * p.intermediate;
    float sum[kOutputs] = {};
    for (int at = begin + 8 * lane; at < end; at += kAhead * kStep) {
      uint4 weights[kAhead][kOutputs];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
#pragma unroll
        for (int r = 0; r < kOutputs; ++r) {
          const int64_t row = min(first + r, p.hidden - 1);
          const int i = at + j * kStep;
          weights[j][r] = i < end ? load_weight(weight + row * p.intermediate + i) : uint4{};
        }
      }
      // The weights are on their way while the first product ends.
      if (!waited) wait_for_inputs();
      waited = true;
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const int i = at + j * kStep;
        if (i >= end) break;
        const Vec<T> values = Vec<T>::load(x + i);
#pragma unroll
        for (int r = 0; r < kOutputs; ++r) sum[r] = dot(sum[r], weights[j][r], values);
      }
    }
#pragma unroll
    for (int r = 0; r < kOutputs; ++r) {
      const float total = warp_sum(sum[r]);
      if (lane == 0) sums[unit][r] = total;
    }
  }
  if (!waited) wait_for_inputs();
  __syncthreads();
  const int r = static_cast<int>(threadIdx.x), output = first + r;
  if (r >= kOutputs || output >= p.hidden) return;
  float out = 0.0F;
  for (int choice = 0; choice < p.top_k; ++choice) {
    const int expert = p.expert_ids[choice];
    if (expert < 0) continue;
    float sum = p.down_bias != nullptr ? p.down_bias[static_cast<int64_t>(expert) * p.hidden + output] : 0.0F;
    for (int part = 0; part < parts; ++part) sum += sums[choice * parts + part][r];
    out = fmaf(p.weights[choice], sum, out);
  }
  p.out[output] = from_float<T>(out);
}

}  // namespace quire::cuda
