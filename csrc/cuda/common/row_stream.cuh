// Rows (rows.cuh) from registers, on any device.
//
// Two blocks on each multiprocessor take an equal stretch of the rows each, and each of a block's warps an
// equal stretch of the steps in which they are read: 256 elements of four rows. A warp asks for a step as
// soon as it has used the one four before, so that as much is on its way at the end of a row as in its
// middle. Blocks that come and go, each with rows of its own, lose 5 us of each kernel by that. What a warp
// reads first it asks for before the kernel in front has ended.
#pragma once

#include <algorithm>

#include "common/weight_stream.cuh"

namespace quire::cuda {

namespace row_stream {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kBlocksPerSm = 2;
constexpr int kRows = 4;       // of a group, which are multiplied together
constexpr int kStep = 32 * 8;  // elements that a warp reads of a row at once
constexpr int kAhead = 4;      // steps on their way at once
constexpr int kMaxBlockGroups = 64;

// A group's sums, of each warp that had a part of it.
using Parts = float4[kWarps];

}  // namespace row_stream

template <typename Rows>
__global__ void __launch_bounds__(row_stream::kThreads, row_stream::kBlocksPerSm)
    row_stream_kernel(const __grid_constant__ Rows rows) {
  using namespace row_stream;
  using T = typename Rows::Element;
  extern __shared__ Parts parts[];
  __shared__ typename Rows::Shared shared;
  constexpr int kOutputs = kRows / Rows::kRowsOfOutput;
  const int num_outputs = rows.num_outputs(), segments = rows.segments(), depth = rows.depth();
  const int groups = ceil_div(num_outputs, kOutputs);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const auto first_of = [groups](unsigned block) {
    return static_cast<int>(static_cast<int64_t>(block) * groups / gridDim.x);
  };
  const int first = first_of(blockIdx.x), num_groups = first_of(blockIdx.x + 1) - first;
  const int segment_steps = ceil_div(depth, kStep), group_steps = segments * segment_steps;
  const int begin = num_groups * group_steps * warp / kWarps;
  const int count = num_groups * group_steps * (warp + 1) / kWarps - begin;
  for (int i = static_cast<int>(threadIdx.x); i < num_groups * kWarps; i += kThreads)
    parts[i / kWarps][i % kWarps] = {};
  rows.start(shared);
  __syncthreads();
  rows.started(shared);

  struct Place {
    int group, segment, step;
  };
  const Place start = {begin / group_steps, begin % group_steps / segment_steps, begin % segment_steps};
  // True where a segment ends.
  const auto advance = [&](Place& at) {
    if (++at.step < segment_steps) return false;
    at.step = 0;
    if (++at.segment == segments) {
      at.segment = 0;
      ++at.group;
    }
    return true;
  };
  Place loads = start;
  int left = count;  // to ask for
  const T* row[kRows];
  const auto find_rows = [&] {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int output = (first + loads.group) * kOutputs + r / Rows::kRowsOfOutput;
      row[r] = rows.weight(shared, min(output, num_outputs - 1), loads.segment, r % Rows::kRowsOfOutput);
    }
  };
  if (left > 0) find_rows();
  uint4 weights[kAhead][kRows];
  const auto ask = [&](int j) {
    if (left <= 0) return;
    --left;
    const int i = loads.step * kStep + 8 * lane;
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      weights[j][r] = row[r] != nullptr && i < depth ? load_weight(row[r] + i) : uint4{};
    if (advance(loads) && left > 0) find_rows();
  };
#pragma unroll
  for (int j = 0; j < kAhead; ++j) ask(j);
  wait_for_inputs();

  Place at = start;
  float sums[kRows] = {}, totals[kRows] = {};  // of the segment and of the group
  const auto end_segment = [&] {
    const float scale = rows.scale(shared, at.segment);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      totals[r] = fmaf(scale, sums[r], totals[r]);
      sums[r] = 0.0F;
    }
  };
  const auto end_group = [&] {
    float* part = reinterpret_cast<float*>(&parts[at.group][warp]);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float total = warp_sum(totals[r]);
      if (lane == r) part[r] = total;
      totals[r] = 0.0F;
    }
  };
  for (int done = 0; done < count; done += kAhead) {
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (done + j >= count) break;
      const int i = at.step * kStep + 8 * lane;
      const Vec<T> values =
          Vec<T>::load(rows.values() + static_cast<int64_t>(at.segment) * depth + (i < depth ? i : 0));
#pragma unroll
      for (int r = 0; r < kRows; ++r) sums[r] = dot(sums[r], weights[j][r], values);
      ask(j);
      if (at.step + 1 == segment_steps) {
        end_segment();
        if (at.segment + 1 == segments) end_group();
      }
      advance(at);
    }
  }
  if (at.step > 0) end_segment();
  if (at.step > 0 || at.segment > 0) end_group();
  __syncthreads();
  for (int g = static_cast<int>(threadIdx.x); g < num_groups; g += kThreads) {
    float out[kRows] = {};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float4 part = parts[g][w];
      out[0] += part.x;
      out[1] += part.y;
      out[2] += part.z;
      out[3] += part.w;
    }
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) {
      const int output = (first + g) * kOutputs + i;
      if (output >= num_outputs) break;
      float sums_of_output[Rows::kRowsOfOutput];
#pragma unroll
      for (int r = 0; r < Rows::kRowsOfOutput; ++r) sums_of_output[r] = out[i * Rows::kRowsOfOutput + r];
      auto constants = rows.constants(shared, output);
      complete(rows, shared, output, constants);
      rows.finish(shared, output, sums_of_output, constants);
    }
  }
}

template <typename Rows>
void launch_row_stream(const LaunchContext& ctx, const Rows& rows) {
  using namespace row_stream;
  const int groups = ceil_div(rows.num_outputs(), kRows / Rows::kRowsOfOutput);
  const auto blocks = static_cast<unsigned>(
      std::max(std::min(groups, kBlocksPerSm * device_limits().num_sms), ceil_div(groups, kMaxBlockGroups)));
  const auto bytes = [](int block_groups) { return sizeof(Parts) * static_cast<size_t>(block_groups); };
  launch_weight_stream<row_stream_kernel<Rows>>(
      ctx, blocks, kThreads, bytes(ceil_div(groups, static_cast<int>(blocks))), bytes(kMaxBlockGroups), rows);
}

}  // namespace quire::cuda
