// A vector times the rows of a matrix, as fast as the matrix can be read: of one token's linears and experts.
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

// All that a kernel of launch_row_stream does. `Rows` says what there is to multiply:
//
//   int groups                        of kRows rows
//   int segments, depth               of a group: stretches of so many elements
//   void wait_for_weights()           until weight() may be called
//   const T* weight(g, s, r)          row r's elements of a segment, or null: zeros
//   const T* values(g, s)             what they are multiplied by
//   float scale(s)                    of a segment's sum
//   void finish(g, sums)              kRows sums, by one thread
//
// A group's sum is added up in an order that depends on the number of groups and the device alone.
template <typename T, typename Rows>
__device__ __forceinline__ void stream_rows(const Rows& rows) {
  using namespace row_stream;
  extern __shared__ Parts parts[];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const auto first_of = [&rows](unsigned block) {
    return static_cast<int>(static_cast<int64_t>(block) * rows.groups / gridDim.x);
  };
  const int first = first_of(blockIdx.x), num_groups = first_of(blockIdx.x + 1) - first;
  const int segment_steps = ceil_div(rows.depth, kStep), group_steps = rows.segments * segment_steps;
  const int begin = num_groups * group_steps * warp / kWarps;
  const int count = num_groups * group_steps * (warp + 1) / kWarps - begin;
  for (int i = static_cast<int>(threadIdx.x); i < num_groups * kWarps; i += kThreads)
    parts[i / kWarps][i % kWarps] = {};
  __syncthreads();
  rows.wait_for_weights();

  struct Place {
    int group, segment, step;
  };
  const Place start = {begin / group_steps, begin % group_steps / segment_steps, begin % segment_steps};
  // True where a segment ends.
  const auto advance = [&](Place& at) {
    if (++at.step < segment_steps) return false;
    at.step = 0;
    if (++at.segment == rows.segments) {
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
    for (int r = 0; r < kRows; ++r) row[r] = rows.weight(first + loads.group, loads.segment, r);
  };
  if (left > 0) find_rows();
  uint4 weights[kAhead][kRows];
  const auto ask = [&](int j) {
    if (left <= 0) return;
    --left;
    const int i = loads.step * kStep + 8 * lane;
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      weights[j][r] = row[r] != nullptr && i < rows.depth ? load_weight(row[r] + i) : uint4{};
    if (advance(loads) && left > 0) find_rows();
  };
#pragma unroll
  for (int j = 0; j < kAhead; ++j) ask(j);
  wait_for_inputs();

  Place at = start;
  float sums[kRows] = {}, totals[kRows] = {};  // of the segment and of the group
  const auto end_segment = [&] {
    const float scale = rows.scale(at.segment);
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
          Vec<T>::load(rows.values(first + at.group, at.segment) + (i < rows.depth ? i : 0));
#pragma unroll
      for (int r = 0; r < kRows; ++r) sums[r] = dot(sums[r], weights[j][r], values);
      ask(j);
      if (at.step + 1 == segment_steps) {
        end_segment();
        if (at.segment + 1 == rows.segments) end_group();
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
    rows.finish(first + g, out);
  }
}

// Launches such a kernel.
template <auto kKernel, typename... Args>
void launch_row_stream(const LaunchContext& ctx, int groups, Args&&... args) {
  using namespace row_stream;
  const auto blocks = static_cast<unsigned>(
      std::max(std::min(groups, kBlocksPerSm * device_limits().num_sms), ceil_div(groups, kMaxBlockGroups)));
  const auto bytes = [](int block_groups) { return sizeof(Parts) * static_cast<size_t>(block_groups); };
  launch_weight_stream<kKernel>(ctx, blocks, kThreads, bytes(ceil_div(groups, static_cast<int>(blocks))),
                                bytes(kMaxBlockGroups), std::forward<Args>(args)...);
}

}  // namespace quire::cuda
