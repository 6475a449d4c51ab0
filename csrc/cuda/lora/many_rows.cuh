// Many rows: h goes through memory. What these kernels read and write besides is the inputs once and the
// outputs once, which is nearly all of their time: blocks have several segments, mostly of the same adapter,
// whose reads are under way at once.
#pragma once

#include "common/dependent_launch.cuh"
#include "lora/expand.cuh"
#include "lora/shrink.cuh"

namespace quire::cuda {

constexpr int kManyRowsSegments = 4;  // of a block at once
constexpr int kShrinkRanks = 64;      // at once

// Whether the segments from `first` on are full ones of one adapter, side by side.
__device__ __forceinline__ bool are_one(const LoraSegment (&segments)[kManyRowsSegments]) {
  bool is_one = true;
#pragma unroll
  for (int i = 1; i < kManyRowsSegments; ++i)
    is_one = is_one && segments[i].slot == segments[0].slot && segments[i].begin == segments[i - 1].end &&
             segments[i - 1].end - segments[i - 1].begin == kLoraSegmentRows;
  return is_one && segments[kManyRowsSegments - 1].end > segments[kManyRowsSegments - 1].begin;
}

// Ranks [first, first + 8 * kTiles) of up to 16 * kRowTiles rows.
template <typename T, int kTiles, int kRowTiles>
__device__ __forceinline__ void shrink_many_rows(const LoraParams& p, const LoraSegment& segment,
                                                 const LoraSlot& slot, int first, int ranks, float* parts) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  const ShrinkSteps steps(p.k, warp, kLoraWarps);
  const int num_rows = segment.end - segment.begin;
  const T* x[2 * kRowTiles];
#pragma unroll
  for (int i = 0; i < 2 * kRowTiles; ++i) {
    const int at = load_row(p, segment, thread % 32 / 4 + 8 * i);
    x[i] = at >= 0 ? static_cast<const T*>(p.x) + at * p.x_stride : nullptr;
  }
  float sums[kRowTiles][kTiles][4] = {};
#pragma unroll(kTiles <= 2 ? 2 : 1)
  for (int step = steps.begin; step < steps.end; ++step) {
    uint4 a[kTiles], in[kRowTiles][2];
    load_a<T>(a, slot.a, p.k, first, ranks, step, steps.end);
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) load_x<T>(in[j], x + 2 * j, p.k, step, steps.end);
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) shrink_step<T>(sums[j], a, in[j]);
  }
  const int count = ranks - first < 8 * kTiles ? ranks - first : 8 * kTiles;
#pragma unroll
  for (int j = 0; j < kRowTiles; ++j) {
    for_each_sum(sums[j], [&](int row, int rank, float one, float other) {
      row += j * kLoraSegmentRows;
      if (row < num_rows && rank < count)
        *reinterpret_cast<float2*>(parts + (warp * num_rows + row) * count + rank) = float2{one, other};
    });
  }
  __syncthreads();
  T* h = static_cast<T*>(p.h) + static_cast<int64_t>(segment.begin) * p.h_stride + first;
  for (int i = thread; i < num_rows * count; i += kLoraThreads) {
    float sum = 0.0F;
#pragma unroll
    for (int w = 0; w < kLoraWarps; ++w) sum += parts[w * num_rows * count + i];
    h[static_cast<int64_t>(i / count) * p.h_stride + i % count] = from_float<T>(sum);
  }
  __syncthreads();
}

template <typename T, int kRowTiles>
__device__ __forceinline__ void shrink_all_ranks(const LoraParams& p, const LoraSegment& segment,
                                                 float* parts) {
  const LoraSlot slot = load_slot(p, segment.slot);
  const int ranks = total_rank(slot);
  for (int first = 0; first < ranks; first += kShrinkRanks) {
    const int left = ranks - first;
    if (left <= 16) {
      shrink_many_rows<T, 2, kRowTiles>(p, segment, slot, first, ranks, parts);
    } else if (left <= 32) {
      shrink_many_rows<T, 4, kRowTiles>(p, segment, slot, first, ranks, parts);
    } else {
      shrink_many_rows<T, 8, kRowTiles>(p, segment, slot, first, ranks, parts);
    }
  }
}

// Of dynamic shared memory.
inline int shrink_shared_bytes(int max_total_rank) {
  const int ranks = max_total_rank < kShrinkRanks ? max_total_rank : kShrinkRanks;
  return kLoraWarps * kManyRowsSegments * kLoraSegmentRows * ranks * static_cast<int>(sizeof(float));
}

template <typename T>
__global__ void __launch_bounds__(kLoraThreads, 1) lora_shrink_kernel(const __grid_constant__ LoraParams p) {
  extern __shared__ __align__(16) std::byte shared[];
  float* parts = reinterpret_cast<float*>(shared);
  let_next_start();
  const int first = static_cast<int>(blockIdx.x) * kManyRowsSegments;
  const int num_segments = __ldcg(p.num_segments);
  if (first >= num_segments) return wait_for_inputs();
  LoraSegment segments[kManyRowsSegments];
#pragma unroll
  for (int i = 0; i < kManyRowsSegments; ++i)
    segments[i] = first + i < num_segments ? load_segment(p, first + i) : LoraSegment{};
  wait_for_inputs();
  if (are_one(segments)) {
    shrink_all_ranks<T, kManyRowsSegments>(
        p, {segments[0].slot, segments[0].begin, segments[kManyRowsSegments - 1].end}, parts);
    return;
  }
  for (int i = 0; i < kManyRowsSegments; ++i) {
    if (first + i < num_segments) shrink_all_ranks<T, 1>(p, load_segment(p, first + i), parts);
  }
}

// A warp's unit of outputs of kCount segments, 16 rows each but for the last, whose rows are `rows`. With kGated
// unit and `up` are a gate's and what it is a gate of.
template <typename T, bool kGated, int kCount>
__device__ __forceinline__ void expand_many_rows(const LoraParams& p, const LoraSegment* segments,
                                                 const int (*rows)[kLoraSegmentRows],
                                                 const ExpandUnit<T>& unit, const ExpandUnit<T>& up) {
  const int row = static_cast<int>(threadIdx.x) % 32 / 4, mine = unit.num_mine();
  Vec<T> before[kGated ? 2 : 1][kCount][2];
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = rows[j][row + 8 * half];
      if (at < 0) continue;
      if (is_vector(place_of(p, unit, at), mine)) before[0][j][half] = Vec<T>::load(place_of(p, unit, at));
      if constexpr (kGated) before[1][j][half] = Vec<T>::load(place_of(p, up, at));
    }
  }
  uint2 b[kGated ? 2 : 1][4];
  unit.load(b[0], 0);
  if constexpr (kGated) up.load(b[1], 0);
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    const T* h = static_cast<const T*>(p.h) + static_cast<int64_t>(segments[j].begin) * p.h_stride;
    const int num_rows = segments[j].end - segments[j].begin;
    float sums[kGated ? 2 : 1][4][4] = {};
    unit.multiply(sums[0], b[0], h, p.h_stride, num_rows);
    if constexpr (kGated) up.multiply(sums[1], b[1], h, p.h_stride, num_rows);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = rows[j][row + 8 * half];
      if (at < 0) continue;
      if constexpr (kGated) {
        store_gated(p, static_cast<T*>(p.gated) + at * p.gated_stride + unit.column, before[0][j][half],
                    before[1][j][half], sums[0], sums[1], half);
      } else {
        add_outputs(place_of(p, unit, at), mine, before[0][j][half], sums[0], half);
      }
    }
  }
}

template <typename T, bool kGated>
__global__ void __launch_bounds__(kLoraThreads) lora_expand_kernel(const __grid_constant__ LoraParams p) {
  __shared__ LoraSegment segments[kManyRowsSegments];
  __shared__ int rows[kManyRowsSegments][kLoraSegmentRows];
  const int thread = static_cast<int>(threadIdx.x);
  const int unit_index = static_cast<int>(blockIdx.x) * kLoraWarps + thread / 32, units = expand_units(p);
  let_next_start();
  const int first = static_cast<int>(blockIdx.y) * kManyRowsSegments;
  const int left = load_num_segments(p) - first, count = left < kManyRowsSegments ? left : kManyRowsSegments;
  if (count <= 0) return wait_for_inputs();
  if (thread < kManyRowsSegments * kLoraSegmentRows) {
    const int i = thread / kLoraSegmentRows;
    const LoraSegment segment = i < count ? load_segment(p, first + i) : LoraSegment{};
    if (thread % kLoraSegmentRows == 0) segments[i] = segment;
    rows[i][thread % kLoraSegmentRows] = load_row(p, segment, thread % kLoraSegmentRows);
  }
  wait_for_inputs();
  __syncthreads();
  if (unit_index >= units) return;
  bool is_one = count == kManyRowsSegments;
  for (int i = 1; i < count; ++i) is_one = is_one && segments[i].slot == segments[0].slot;
  for (int i = 0; i < count; ++i) {
    const LoraSlot slot = load_slot(p, segments[i].slot);
    const ExpandUnit<T> unit(p, slot, unit_index), up(p, slot, kGated ? unit_index + units : unit_index);
    if (!kGated && unit.rank == 0) {
      if (is_one) return;
      continue;
    }
    if (is_one) return expand_many_rows<T, kGated, kManyRowsSegments>(p, segments, rows, unit, up);
    expand_many_rows<T, kGated, 1>(p, segments + i, rows + i, unit, up);
  }
}

}  // namespace quire::cuda
