// Products of experts with few tokens each, which wait for the weights: each is read once.
#pragma once

#include "common/dependent_launch.cuh"
#include "common/few_rows.cuh"
#include "experts/product.cuh"

namespace quire::cuda {

namespace few_rows {

// Outputs of a block at once, where kDepthWarps share kRowTiles tiles of rows.
template <int kDepthWarps, int kRowTiles, bool kGated>
constexpr int kOutputs = kWarps / kDepthWarps * kRowTiles * (kGated ? kTileRows / 2 : kTileRows);

}  // namespace few_rows

// A unit is an item and kOutputs outputs: the item's slots times rows of its expert's weight, tiles of 16
// rows (8 of the gate and 8 of up) for each kDepthWarps of the warps. These take steps of the depth in turn,
// and their sums are added in the warps' order: the shorter the rows, the fewer warps share them.
//
// Two blocks on each multiprocessor take an equal stretch of the units each; as in row_stream.cuh a step of
// the weight is asked for as soon as an earlier one is used, of the next unit too.
template <typename T, int kTiles, int kDepthWarps, int kRowTiles, bool kGated>
__global__ void __launch_bounds__(few_rows::kThreads, few_rows::kBlocksPerSm)
    few_rows_kernel(const __grid_constant__ ExpertProduct<T> p) {
  using namespace few_rows;
  constexpr int kAhead = kTiles * kRowTiles <= 2 ? 4 / kRowTiles : 2;
  constexpr int kTeams = kWarps / kDepthWarps, kBlockOutputs = kOutputs<kDepthWarps, kRowTiles, kGated>;
  constexpr int kTeamOutputs = kBlockOutputs / kTeams, kTileOutputs = kTeamOutputs / kRowTiles;
  __shared__ alignas(8) float parts[kWarps][kRowTiles * kTileRows][kTiles * kTileTokens + 2];
  wait_for_inputs();
  let_next_start();  // not earlier: the sum reads at once who was chosen, which is there by now
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4, t = lane % 4, team = warp / kDepthWarps;
  const int groups = ceil_div(p.n, kBlockOutputs);
  const int64_t units = int64_t{*p.plan.num_items} * groups;
  int unit = static_cast<int>(units * blockIdx.x / gridDim.x);
  const int end = static_cast<int>(units * (blockIdx.x + 1) / gridDim.x);
  const int steps =
      ceil_div(ceil_div(p.k, kStepDepth * kDepthWarps), kAhead) * kAhead;  // what is beyond k is zeros
  const int first_depth = warp % kDepthWarps * kStepDepth + 8 * t;

  // What is asked for.
  int next_unit = unit, next_depth = first_depth, left = 0, item = -1;
  const T* expert_weight = nullptr;
  const T* rows[kRowTiles][2];
  const auto find_rows = [&] {
    left = steps;
    next_depth = first_depth;
    if (next_unit / groups != item) {
      item = next_unit / groups;
      expert_weight = p.weight + p.plan.items[item].expert * p.weight_stride;
    }
    const int first = next_unit % groups * kBlockOutputs + team * kTeamOutputs + g;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      const int upper = min(first + m * kTileOutputs, p.n - 1);
      const int lower = kGated ? p.n + upper : min(first + m * kTileOutputs + 8, p.n - 1);
      rows[m][0] = expert_weight + static_cast<int64_t>(upper) * p.k;
      rows[m][1] = expert_weight + static_cast<int64_t>(lower) * p.k;
    }
  };
  uint4 weights[kAhead][2][kRowTiles][2];
  const auto ask = [&](int j) {
    if (next_unit >= end) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = next_depth + 32 * half;
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int r = 0; r < 2; ++r)
          weights[j][half][m][r] = at < p.k ? load_weight(rows[m][r] + at) : uint4{};
      }
    }
    next_depth += kStepDepth * kDepthWarps;
    if (--left == 0 && ++next_unit < end) find_rows();
  };
  if (unit < end) find_rows();
#pragma unroll
  for (int j = 0; j < kAhead; ++j) ask(j);

  int expert = 0, first_slot = 0, count = 0;
  const T* x_rows[kTiles];
  for (int current = -1; unit < end; ++unit) {
    if (unit / groups != current) {
      current = unit / groups;
      expert = p.plan.items[current].expert;
      first_slot = p.plan.items[current].first_slot;
      count = p.plan.items[current].count;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const int slot = first_slot + min(tile * kTileTokens + g, count - 1);
        x_rows[tile] = p.x + (kGated ? p.plan.token[slot] : slot) * p.x_stride;
      }
    }
    float sums[kRowTiles][kTiles][4] = {};
    int depth = first_depth;
    for (int step = 0; step < steps; step += kAhead) {
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int at = depth + 32 * half;
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile) {
            uint4 x{};
            if (at < p.k && tile * kTileTokens < count)
              x = *reinterpret_cast<const uint4*>(x_rows[tile] + at);
#pragma unroll
            for (int m = 0; m < kRowTiles; ++m)
              multiply_half_step<T>(sums[m][tile], weights[j][half][m][0], weights[j][half][m][1], x);
          }
        }
        depth += kStepDepth * kDepthWarps;
        ask(j);
      }
    }
    __syncthreads();  // the unit before has been stored
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        store_sums(sums[m][tile], [&](int row, int token, float2 x) {
          float* to = &parts[warp][m * kTileRows + row][tile * kTileTokens + token];
          *reinterpret_cast<float2*>(to) = x;
        });
      }
    }
    __syncthreads();
    const float* bias = p.bias_of(expert, kGated);
    const auto sum_of = [&](int of_team, int row, int token, int bias_at) {
      float sum = 0.0F;
#pragma unroll
      for (int w = 0; w < kDepthWarps; ++w) sum += parts[of_team * kDepthWarps + w][row][token];
      return bias != nullptr ? sum + bias[bias_at] : sum;
    };
    const int first_of_block = unit % groups * kBlockOutputs;
    for (int i = static_cast<int>(threadIdx.x); i < kBlockOutputs * kTiles * kTileTokens; i += kThreads) {
      const int in_block = i % kBlockOutputs, token = i / kBlockOutputs, output = first_of_block + in_block;
      if (output >= p.n || token >= count) continue;
      const int of_team = in_block / kTeamOutputs, in_team = in_block % kTeamOutputs;
      const int row = in_team / kTileOutputs * kTileRows + in_team % kTileOutputs;
      float value = sum_of(of_team, row, token, output);
      if constexpr (kGated)
        value = activate_gated(value, sum_of(of_team, row + 8, token, p.n + output), p.activation);
      p.out[static_cast<int64_t>(first_slot + token) * p.n + output] = from_float<T>(value);
    }
  }
}

// Any dtype and alignment: a warp for an output, lanes along the depth.
template <typename T, bool kGated>
__global__ void __launch_bounds__(few_rows::kThreads) plain_kernel(const ExpertProduct<T> p) {
  using namespace few_rows;
  constexpr int kTokens = 8;
  const ExpertItem item = p.plan.items[blockIdx.x];
  const int expert = item.expert;
  if (expert < 0) return;
  const int first_slot = item.first_slot, count = item.count;
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
