// Products of experts with few tokens each, which wait for the weights: each is read once.
#pragma once

#include "common/dependent_launch.cuh"
#include "common/tensor_core.cuh"
#include "experts/product.cuh"

namespace quire::cuda {

namespace few_rows {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kRows = 16;       // of the weight, of one block
constexpr int kTileTokens = 8;  // of one product of the tensor cores
constexpr int kStepDepth = 64;  // of one warp: two times 16 bytes of a row for each of four lanes

}  // namespace few_rows

// Block (x, y): item x's slots times rows of the weight of its expert, 16 for each kDepthWarps of the warps
// (8 of the gate and 8 of up). These take steps of the depth in turn, and their sums are added in the warps'
// order: the shorter the rows, the fewer warps share them. As in linear_int8.cu the tensor cores do not mind
// which depths meet: product s takes of each lane's eight the depths 4 s to 4 s + 3.
template <typename T, int kTiles, int kDepthWarps, bool kGated>
__global__ void __launch_bounds__(few_rows::kThreads) few_rows_kernel(const ExpertProduct<T> p) {
  using namespace few_rows;
  let_next_start();
  wait_for_inputs();
  const int expert = p.plan.item_expert[blockIdx.x];
  if (expert < 0) return;
  const int first_slot = p.plan.item_first[blockIdx.x], count = p.plan.item_count[blockIdx.x];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4, t = lane % 4;
  constexpr int kOutputs = kGated ? kRows / 2 : kRows, kTeams = kWarps / kDepthWarps;
  const int team = warp / kDepthWarps;
  const int first_of_block = static_cast<int>(blockIdx.y) * kTeams * kOutputs;
  const int first = first_of_block + team * kOutputs;
  const int upper = min(first + g, p.n - 1);
  const int lower = kGated ? p.n + upper : min(first + g + 8, p.n - 1);
  const T* weight = p.weight + expert * p.weight_stride;
  const T* upper_row = weight + static_cast<int64_t>(upper) * p.k;
  const T* lower_row = weight + static_cast<int64_t>(lower) * p.k;
  const T* x_rows[kTiles];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const int slot = first_slot + min(tile * kTileTokens + g, count - 1);
    x_rows[tile] = p.x + (kGated ? p.plan.token[slot] : slot) * p.x_stride;
  }
  float sums[kTiles][4] = {};
#pragma unroll 2
  for (int depth = warp % kDepthWarps * kStepDepth; depth < p.k; depth += kDepthWarps * kStepDepth) {
    uint4 a[2][2], b[kTiles][2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = depth + 32 * half + 8 * t;
      const bool inside = at < p.k;
      a[half][0] = a[half][1] = uint4{};
      if (inside) {
        a[half][0] = load_weight(upper_row + at);
        a[half][1] = load_weight(lower_row + at);
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        b[tile][half] = uint4{};
        if (inside && tile * kTileTokens < count)
          b[tile][half] = *reinterpret_cast<const uint4*>(x_rows[tile] + at);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t first_words[4] = {a[half][0].x, a[half][1].x, a[half][0].y, a[half][1].y};
      const uint32_t second_words[4] = {a[half][0].z, a[half][1].z, a[half][0].w, a[half][1].w};
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        multiply_add<T>(sums[tile], first_words, b[tile][half].x, b[tile][half].y);
        multiply_add<T>(sums[tile], second_words, b[tile][half].z, b[tile][half].w);
      }
    }
  }
  __shared__ float parts[kWarps][kRows][kTiles * kTileTokens + 1];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      parts[warp][g + 8 * (i / 2)][tile * kTileTokens + 2 * t + i % 2] = sums[tile][i];
  }
  __syncthreads();
  const float* bias = p.bias_of(expert, kGated);
  const auto sum_of = [&](int of_team, int row, int token, int bias_at) {
    float sum = 0.0F;
#pragma unroll
    for (int w = 0; w < kDepthWarps; ++w) sum += parts[of_team * kDepthWarps + w][row][token];
    return bias != nullptr ? sum + bias[bias_at] : sum;
  };
  constexpr int kBlockOutputs = kTeams * kOutputs;
  for (int i = static_cast<int>(threadIdx.x); i < kBlockOutputs * kTiles * kTileTokens; i += kThreads) {
    const int in_block = i % kBlockOutputs, token = i / kBlockOutputs, output = first_of_block + in_block;
    if (output >= p.n || token >= count) continue;
    const int of_team = in_block / kOutputs, row = in_block % kOutputs;
    float value = sum_of(of_team, row, token, output);
    if constexpr (kGated)
      value = activate_gated(value, sum_of(of_team, row + 8, token, p.n + output), p.activation);
    p.out[static_cast<int64_t>(first_slot + token) * p.n + output] = from_float<T>(value);
  }
}

// Any dtype and alignment: a warp for an output, lanes along the depth.
template <typename T, bool kGated>
__global__ void __launch_bounds__(few_rows::kThreads) plain_kernel(const ExpertProduct<T> p) {
  using namespace few_rows;
  constexpr int kTokens = 8;
  const int expert = p.plan.item_expert[blockIdx.x];
  if (expert < 0) return;
  const int first_slot = p.plan.item_first[blockIdx.x], count = p.plan.item_count[blockIdx.x];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int output = static_cast<int>(blockIdx.y) * kWarps + warp;
  if (output >= p.n) return;
  const T* weight = p.weight + expert * p.weight_stride;
  const T* row = weight + static_cast<int64_t>(output) * p.k;
  const T* up_row = row + static_cast<int64_t>(p.n) * p.k;
  const float* bias = p.bias_of(expert, kGated);
  for (int begin = 0; begin < count; begin += kTokens) {
    float sums[kTokens] = {}, up_sums[kTokens] = {};
    for (int i = lane; i < p.k; i += 32) {
      const float w = to_float(row[i]), u = kGated ? to_float(up_row[i]) : 0.0F;
#pragma unroll
      for (int j = 0; j < kTokens; ++j) {
        if (begin + j >= count) break;
        const int slot = first_slot + begin + j;
        const float x = to_float(p.x[(kGated ? p.plan.token[slot] : slot) * p.x_stride + i]);
        sums[j] = fmaf(w, x, sums[j]);
        if constexpr (kGated) up_sums[j] = fmaf(u, x, up_sums[j]);
      }
    }
#pragma unroll
    for (int j = 0; j < kTokens; ++j) {
      float sum = warp_sum(sums[j]), up = kGated ? warp_sum(up_sums[j]) : 0.0F;
      if (lane != 0 || begin + j >= count) continue;
      if (bias != nullptr) {
        sum += bias[output];
        if constexpr (kGated) up += bias[p.n + output];
      }
      const int64_t place = static_cast<int64_t>(first_slot + begin + j) * p.n + output;
      p.out[place] = from_float<T>(kGated ? activate_gated(sum, up, p.activation) : sum);
    }
  }
}

}  // namespace quire::cuda
