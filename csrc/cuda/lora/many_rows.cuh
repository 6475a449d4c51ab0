// Many rows: h goes through memory. What these kernels read and write besides is the inputs once and the
// outputs once, which is nearly all of their time.
#pragma once

#include "common/dependent_launch.cuh"
#include "lora/tiles.cuh"

namespace quire::cuda {

constexpr int kShrinkSegments = 2;  // of a block

// A block has two segments, mostly of the same adapter, which it then multiplies at once.
template <typename T>
__global__ void __launch_bounds__(kLoraThreads) lora_shrink_kernel(const __grid_constant__ LoraParams p) {
  extern __shared__ __align__(16) std::byte shared[];
  float* parts = reinterpret_cast<float*>(shared);
  const int row = static_cast<int>(threadIdx.x) % 32 / 4;
  const ShrinkSteps steps(p.k, static_cast<int>(threadIdx.x) / 32, kLoraWarps);
  let_next_start();
  const int first = static_cast<int>(blockIdx.x) * kShrinkSegments;
  const int num_segments = __ldcg(p.num_segments);
  if (first >= num_segments) return wait_for_inputs();
  LoraSegment segments[2] = {load_segment(p, first), {}};
  if (first + 1 < num_segments) segments[1] = load_segment(p, first + 1);
  wait_for_inputs();
  const bool is_one = segments[0].slot == segments[1].slot && segments[0].end == segments[1].begin &&
                      segments[0].end - segments[0].begin == kLoraSegmentRows;
  const auto multiply = [&]<int kRowTiles>(const LoraSegment& segment) {
    const LoraSlot slot = load_slot(p, segment.slot);
    const int ranks = total_rank(slot), num_rows = segment.end - segment.begin;
    T* h = static_cast<T*>(p.h) + static_cast<int64_t>(segment.begin) * p.h_stride;
    const T* x[2 * kRowTiles];
#pragma unroll
    for (int i = 0; i < 2 * kRowTiles; ++i) {
      const int at = load_row(p, segment, row + 8 * i);
      x[i] = at >= 0 ? static_cast<const T*>(p.x) + at * p.x_stride : nullptr;
    }
    for (int begin = 0; begin < ranks; begin += kShrinkRanks) {
      with_shrink_tiles(ranks - begin, [&](auto tiles) {
        constexpr int kTiles = decltype(tiles)::value;
        ShrinkMatrix<T, kTiles> matrix;
        matrix.load(slot.a, p.k, begin, ranks, steps.begin, steps.end);
        shrink<T, kTiles, kRowTiles>(matrix, slot.a, p.k, begin, ranks, steps, x, num_rows, parts,
                                     [&](int r, int rank, float sum) {
                                       h[static_cast<int64_t>(r) * p.h_stride + rank] = from_float<T>(sum);
                                     });
      });
      __syncthreads();
    }
  };
  if (is_one) {
    multiply.template operator()<2>({segments[0].slot, segments[0].begin, segments[1].end});
  } else {
    for (const LoraSegment& segment : segments) {
      if (segment.end > segment.begin) multiply.template operator()<1>(segment);
    }
  }
}

constexpr int kExpandSegments = 8;  // of a block

// A warp has a unit of outputs of several segments, mostly of the same adapter.
template <typename T>
__global__ void __launch_bounds__(kLoraThreads) lora_expand_kernel(const __grid_constant__ LoraParams p) {
  __shared__ LoraSegment segments[kExpandSegments];
  __shared__ int rows[kExpandSegments][kLoraSegmentRows];
  const int thread = static_cast<int>(threadIdx.x), row = thread % 32 / 4;
  const int unit_index = static_cast<int>(blockIdx.x) * kLoraWarps + thread / 32, units = expand_units(p);
  let_next_start();
  const int first = static_cast<int>(blockIdx.y) * kExpandSegments;
  const int left = __ldcg(p.num_segments) - first, count = left < kExpandSegments ? left : kExpandSegments;
  if (count <= 0) return wait_for_inputs();
  static_assert(kExpandSegments * kLoraSegmentRows <= kLoraThreads);
  if (thread < kExpandSegments * kLoraSegmentRows && thread / kLoraSegmentRows < count) {
    const LoraSegment segment = load_segment(p, first + thread / kLoraSegmentRows);
    if (thread % kLoraSegmentRows == 0) segments[thread / kLoraSegmentRows] = segment;
    rows[thread / kLoraSegmentRows][thread % kLoraSegmentRows] =
        load_row(p, segment, thread % kLoraSegmentRows);
  }
  wait_for_inputs();
  __syncthreads();
  if (unit_index >= units) return;
  int slot_index = segments[0].slot;
  LoraSlot slot = load_slot(p, slot_index);
  ExpandUnit<T> unit(p, slot, unit_index);
  uint2 b[4];
  unit.load(b, 0);
  ExpandOutputs<T> outputs;
  outputs.load(p, unit, {rows[0][row], rows[0][row + 8]});
  for (int i = 0; i < count; ++i) {
    const LoraSegment segment = segments[i];
    const bool has_more = i + 1 < count;
    const int next_slot = has_more ? segments[i + 1].slot : slot_index;
    ExpandOutputs<T> following;
    if (has_more && next_slot == slot_index) following.load(p, unit, {rows[i + 1][row], rows[i + 1][row + 8]});
    if (unit.rank > 0) {
      if (unit.rank > 16 && i > 0) unit.load(b, 0);
      expand(unit, b, outputs, static_cast<const T*>(p.h) + static_cast<int64_t>(segment.begin) * p.h_stride,
             p.h_stride, segment.end - segment.begin);
    }
    if (has_more && next_slot != slot_index) {
      slot_index = next_slot;
      slot = load_slot(p, slot_index);
      unit = ExpandUnit<T>(p, slot, unit_index);
      unit.load(b, 0);
      following.load(p, unit, {rows[i + 1][row], rows[i + 1][row + 8]});
    }
    outputs = following;
  }
}

}  // namespace quire::cuda
