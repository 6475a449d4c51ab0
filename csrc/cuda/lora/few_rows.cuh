// Few rows: both products in one kernel. A cluster of blocks has a segment: each block a share of the depth of
// `a`, whose sums the blocks add up from each other's shared memory, and then a share of the outputs. Where
// there are fewer segments than clusters, several have the same one and divide its outputs; each then makes all
// of h, which is less than what it would take to hand it on through memory. What is read of the adapters is on
// its way before the inputs are there, and of the next segment while this one is computed. Blocks are small
// enough to run beside those of a linear of one row (row_slots_layout.h).
#pragma once

#include "common/cluster.cuh"
#include "common/dependent_launch.cuh"
#include "lora/expand.cuh"
#include "lora/shrink.cuh"

namespace quire::cuda {

constexpr int kLoraClusterBlocks = 8;

// Of a block's dynamic shared memory, for segments of up to `rows`.
struct LoraFewRowsShared {
  __host__ __device__ LoraFewRowsShared(int rows, int max_total_rank)
      : rows(rows),
        sums_begin(kLoraWarps * rows * max_total_rank * 4),
        sums_bytes(rows * max_total_rank * 4),
        h_stride(max_total_rank + 8),
        h_begin(sums_begin + 2 * sums_bytes),
        bytes(h_begin + rows * h_stride * 2) {}
  int rows, sums_begin, sums_bytes, h_stride, h_begin, bytes;
};

// A segment as a thread sees it.
struct LoraWork {
  LoraSegment segment;
  LoraSlot slot;
  int rows[2];  // lane / 4, and eight more; -1: there is none

  __device__ __forceinline__ void load(const LoraParams& p, const LoraSegment& which) {
    const int row = static_cast<int>(threadIdx.x) % 32 / 4;
    segment = which;
    slot = load_slot(p, which.slot);
    rows[0] = load_row(p, which, row);
    rows[1] = load_row(p, which, row + 8);
  }
  __device__ __forceinline__ int num_rows() const { return segment.end - segment.begin; }
};

// Steps of a warp and eights of ranks that are loaded at once.
constexpr int kFewRowsSteps = 2, kFewRowsTiles = 4;

template <typename T>
struct FewRowsOperands {
  uint4 a[kFewRowsSteps][kFewRowsTiles], x[kFewRowsSteps][2];

  __device__ __forceinline__ void load_adapter(const LoraParams& p, const LoraSlot& slot, int ranks, int step,
                                               int end, int first) {
#pragma unroll
    for (int s = 0; s < kFewRowsSteps; ++s) load_a<T>(a[s], slot.a, p.k, first, ranks, step + s, end);
  }
  __device__ __forceinline__ void load_inputs(const LoraParams& p, const T* const (&rows)[2], int step,
                                              int end) {
#pragma unroll
    for (int s = 0; s < kFewRowsSteps; ++s) load_x<T>(x[s], rows, p.k, step + s, end);
  }
};

// What a lane has of the outputs of a unit, before they are computed.
template <typename T>
struct FewRowsOutputs {
  uint2 b[4];
  Vec<T> before[2];

  __device__ __forceinline__ void load(const LoraParams& p, const ExpandUnit<T>& unit, const int (&rows)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (rows[half] < 0) continue;
      const T* place = place_of(p, unit, rows[half]);
      if (is_vector(place, unit.num_mine())) before[half] = Vec<T>::load(place);
    }
  }
};

// A block's share of h = a x, as sums of each row and rank.
template <typename T>
__device__ __forceinline__ void shrink_few_rows(const LoraParams& p, const LoraWork& work, int ranks,
                                                ShrinkSteps steps, const T* const (&x)[2],
                                                FewRowsOperands<T>& operands, float* parts, float* sums) {
  const int num_rows = work.num_rows();
  float* part = parts + static_cast<int>(threadIdx.x) / 32 * num_rows * ranks;
  // All ranks of two steps, then all of the next two.
  for (int step = steps.begin; step < steps.end; step += kFewRowsSteps) {
    for (int first = 0; first < ranks; first += 8 * kFewRowsTiles) {
      if (step > steps.begin || first > 0) {
        operands.load_adapter(p, work.slot, ranks, step, steps.end, first);
        if (first == 0) operands.load_inputs(p, x, step, steps.end);
      }
      float made[kFewRowsTiles][4] = {};
#pragma unroll
      for (int s = 0; s < kFewRowsSteps; ++s) shrink_step<T>(made, operands.a[s], operands.x[s]);
      for_each_sum(made, [&](int row, int rank, float one, float other) {
        if (row >= num_rows || first + rank >= ranks) return;
        auto* to = reinterpret_cast<float2*>(part + row * ranks + first + rank);
        const float2 before = step == steps.begin ? float2{} : *to;
        *to = float2{before.x + one, before.y + other};
      });
    }
  }
  if (steps.begin >= steps.end) {
    for (int i = static_cast<int>(threadIdx.x) % 32; i < num_rows * ranks; i += 32) part[i] = 0.0F;
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < num_rows * ranks; i += kLoraThreads) {
    float sum = 0.0F;
#pragma unroll
    for (int w = 0; w < kLoraWarps; ++w) sum += parts[w * num_rows * ranks + i];
    sums[i] = sum;
  }
}

// Outputs of a warp: a unit or, with kGated, that of a gate and of what it is a gate of.
template <typename T, bool kGated>
struct FewRowsExpansion {
  static constexpr int kUnits = kGated ? 2 : 1;
  ExpandUnit<T> units[kUnits];
  FewRowsOutputs<T> outputs[kUnits];

  // `num_units` is expand_units.
  __device__ __forceinline__ FewRowsExpansion(const LoraParams& p, const LoraSlot& slot, int unit,
                                              int num_units) {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) units[i] = ExpandUnit<T>(p, slot, unit + i * num_units);
  }

  __device__ __forceinline__ void load_adapter() {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) units[i].load(outputs[i].b, 0);
  }
  __device__ __forceinline__ void load_outputs(const LoraParams& p, const int (&rows)[2]) {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) outputs[i].load(p, units[i], rows);
  }
  __device__ __forceinline__ void finish(const LoraParams& p, const LoraWork& work, const T* h, int h_stride) {
    float sums[kUnits][4][4] = {};
#pragma unroll
    for (int i = 0; i < kUnits; ++i)
      units[i].multiply(sums[i], outputs[i].b, h, h_stride, work.num_rows());
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = work.rows[half];
      if (row < 0) continue;
      if constexpr (kGated) {
        store_gated(p, static_cast<T*>(p.gated) + row * p.gated_stride + units[0].column,
                    outputs[0].before[half], outputs[1].before[half], sums[0], sums[1], half);
      } else if (units[0].rank > 0) {
        add_outputs(place_of(p, units[0], row), units[0].num_mine(), outputs[0].before[half], sums[0], half);
      }
    }
  }
};

// What a warp will read of an adapter, on its way to the L2 cache.
template <typename T, bool kGated>
__device__ __forceinline__ void prefetch_share(const LoraParams& p, const LoraSlot& slot, ShrinkSteps steps,
                                               int first_unit, int unit_stride, int units) {
  const int ranks = total_rank(slot);
  if (ranks == 0) return;
  constexpr int kLine = 128 / sizeof(T);
  const int lines = ((steps.end - steps.begin) * kShrinkDepth + kLine - 1) / kLine;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < lines * ranks; i += 32) {
    prefetch_line(static_cast<const T*>(slot.a) + static_cast<int64_t>(i / lines) * p.k +
                  steps.begin * kShrinkDepth + i % lines * kLine);
  }
  for (int u = first_unit; u < units; u += unit_stride) {
    ExpandUnit<T>(p, slot, u).prefetch();
    if constexpr (kGated) ExpandUnit<T>(p, slot, u + units).prefetch();
  }
}

template <typename T, bool kGated>
__global__ void __launch_bounds__(kLoraThreads, 2)
    lora_few_rows_kernel(const __grid_constant__ LoraParams p, int max_rows, int max_total_rank) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) std::byte shared[];
  const LoraFewRowsShared layout(max_rows, max_total_rank);
  float* parts = reinterpret_cast<float*>(shared);
  T* h = reinterpret_cast<T*>(shared + layout.h_begin);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int cluster = static_cast<int>(blockIdx.x) / kLoraClusterBlocks;
  const int block = static_cast<int>(blockIdx.x) % kLoraClusterBlocks;
  const int num_clusters = static_cast<int>(gridDim.x) / kLoraClusterBlocks;
  let_next_start();

  // Segments are read before it is known how many there are.
  const LoraSegment early = lane < p.max_segments ? load_segment(p, lane) : LoraSegment{};
  const int num_segments = load_num_segments(p);
  const auto segment_at = [&](int index) {
    if (index >= 32) return load_segment(p, index);
    return LoraSegment{__shfl_sync(0xFFFFFFFFU, early.slot, index),
                       __shfl_sync(0xFFFFFFFFU, early.begin, index),
                       __shfl_sync(0xFFFFFFFFU, early.end, index)};
  };
  // So many clusters have the same segment; what is left over has none.
  const int sharers = num_segments > 0 && num_segments < num_clusters ? num_clusters / num_segments : 1;
  const int columns = num_clusters / sharers;  // segments at a time
  const int first = cluster % columns, sharer = cluster / columns;
  if (first >= num_segments || sharer >= sharers) return wait_for_inputs();  // as all of its cluster
  const int units = expand_units(p);
  const int first_unit = (sharer * kLoraClusterBlocks + block) * kLoraWarps + warp;
  const int unit_stride = sharers * kLoraClusterBlocks * kLoraWarps;
  const ShrinkSteps steps(p.k, block * kLoraWarps + warp, kLoraClusterBlocks * kLoraWarps);

  prefetch_share<T, kGated>(p, load_slot(p, segment_at(first).slot), steps, first_unit, unit_stride, units);
  bool has_waited = false;
  int buffer = 0;
  for (int index = first; index < num_segments; index += columns, buffer ^= 1) {
    LoraWork work;
    work.load(p, segment_at(index));
    const int ranks = total_rank(work.slot), num_rows = work.num_rows();
    FewRowsOperands<T> operands;
    operands.load_adapter(p, work.slot, ranks, steps.begin, steps.end, 0);
    const bool has_unit = first_unit < units && (kGated || ranks > 0);
    FewRowsExpansion<T, kGated> expansion(p, work.slot, has_unit ? first_unit : 0, units);
    if (has_unit && !kGated) expansion.load_adapter();
    if (!has_waited) wait_for_inputs();
    has_waited = true;
    const T* x[2];
#pragma unroll
    for (int i = 0; i < 2; ++i)
      x[i] = work.rows[i] >= 0 ? static_cast<const T*>(p.x) + work.rows[i] * p.x_stride : nullptr;
    operands.load_inputs(p, x, steps.begin, steps.end);
    if (has_unit && !kGated) expansion.load_outputs(p, work.rows);
    if (index + columns < num_segments)
      prefetch_share<T, kGated>(p, load_slot(p, segment_at(index + columns).slot), steps, first_unit, unit_stride, units);
    float* sums = reinterpret_cast<float*>(shared + layout.sums_begin + buffer * layout.sums_bytes);
    if (ranks > 0) shrink_few_rows(p, work, ranks, steps, x, operands, parts, sums);
    cluster::arrive();
    cluster::wait();
    for (int i = thread; i < num_rows * ranks; i += kLoraThreads) {
      float sum = 0.0F;
#pragma unroll
      for (int j = 0; j < kLoraClusterBlocks; ++j) sum += cluster::load(cluster::address_of(sums + i, j));
      h[i / ranks * layout.h_stride + i % ranks] = from_float<T>(sum);
    }
    __syncthreads();
    if (!has_unit) continue;
    if constexpr (kGated) {  // which has twice as much of a unit
      for (int u = first_unit; u < units; u += unit_stride) {
        FewRowsExpansion<T, kGated> one(p, work.slot, u, units);
        one.load_adapter();
        one.load_outputs(p, work.rows);
        one.finish(p, work, h, layout.h_stride);
      }
    } else {
    for (int u = first_unit;; u += unit_stride) {
      // The next unit's are under way meanwhile.
      const bool has_more = u + unit_stride < units;
      FewRowsExpansion<T, kGated> following(p, work.slot, has_more ? u + unit_stride : u, units);
      if (has_more) {
        following.load_adapter();
        following.load_outputs(p, work.rows);
      }
      expansion.finish(p, work, h, layout.h_stride);
      if (!has_more) break;
      expansion = following;
    }
    }
  }
  cluster::arrive();  // has read what others have
  cluster::wait();    // before this block's shared memory is gone
#endif
}

}  // namespace quire::cuda
