// Few rows: both products in one kernel. A cluster of blocks has a segment: each block a share of the depth of
// `a`, whose sums the blocks add up from each other's shared memory, and then a share of the outputs. Where
// there are fewer segments than clusters, several have the same one and divide its outputs; each then makes all
// of h, which is less than what it would take to hand it on through memory. What is read of the adapters is on
// its way before the inputs are there, and of the next segment while this one is computed.
#pragma once

#include "common/cluster.cuh"
#include "common/dependent_launch.cuh"
#include "lora/tiles.cuh"

namespace quire::cuda {

constexpr int kLoraClusterBlocks = 8;

// Of a block's dynamic shared memory.
struct LoraFewRowsShared {
  __host__ __device__ explicit LoraFewRowsShared(int max_total_rank)
      : sums_begin(shrink_floats(max_total_rank, 1) * 4),
        sums_bytes(kLoraSegmentRows * max_total_rank * 4),
        h_stride(max_total_rank + 8),
        h_begin(sums_begin + 2 * sums_bytes),
        bytes(h_begin + kLoraSegmentRows * h_stride * 2) {}
  int sums_begin, sums_bytes, h_stride, h_begin, bytes;
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

template <typename T>
__global__ void __launch_bounds__(kLoraThreads)
    lora_few_rows_kernel(const __grid_constant__ LoraParams p, int max_total_rank) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) std::byte shared[];
  const LoraFewRowsShared layout(max_total_rank);
  float* parts = reinterpret_cast<float*>(shared);
  T* h = reinterpret_cast<T*>(shared + layout.h_begin);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int cluster = static_cast<int>(blockIdx.x) / kLoraClusterBlocks;
  const int block = static_cast<int>(blockIdx.x) % kLoraClusterBlocks;
  const int num_clusters = static_cast<int>(gridDim.x) / kLoraClusterBlocks;
  let_next_start();

  // Segments are read before it is known how many there are.
  const LoraSegment early = lane < p.max_segments ? load_segment(p, lane) : LoraSegment{};
  const int num_segments = __ldcg(p.num_segments);
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

  LoraWork work;
  work.load(p, segment_at(first));
  bool has_waited = false;
  int buffer = 0;
  for (int index = first; index < num_segments; index += columns, buffer ^= 1) {
    const int ranks = total_rank(work.slot), num_rows = work.num_rows();
    const bool has_unit = first_unit < units && ranks > 0;
    ExpandUnit<T> unit(p, work.slot, has_unit ? first_unit : 0);
    if (!has_unit) unit.rank = 0;
    uint2 b[4];
    ExpandOutputs<T> outputs;
    LoraWork next;
    float* sums = reinterpret_cast<float*>(shared + layout.sums_begin + buffer * layout.sums_bytes);
    const T* x[2];
    for (int begin = 0; begin < ranks || begin == 0; begin += kShrinkRanks) {
      if (begin > 0) __syncthreads();  // the sums before have been read
      with_shrink_tiles(ranks - begin, [&](auto tiles) {
        constexpr int kTiles = decltype(tiles)::value;
        ShrinkMatrix<T, kTiles> matrix;
        matrix.load(work.slot.a, p.k, begin, ranks, steps.begin, steps.end);
        if (begin == 0) {
          unit.load(b, 0);
          if (!has_waited) wait_for_inputs();
          has_waited = true;
          outputs.load(p, unit, work.rows);
          if (index + columns < num_segments) {
            next.load(p, segment_at(index + columns));
            const int steps_left = steps.end - steps.begin;
            constexpr int kLine = 128 / sizeof(T);
            const int lines = (steps_left * kShrinkDepth + kLine - 1) / kLine;
            for (int i = lane; i < lines * total_rank(next.slot); i += 32) {
              prefetch_line(static_cast<const T*>(next.slot.a) + static_cast<int64_t>(i / lines) * p.k +
                            steps.begin * kShrinkDepth + i % lines * kLine);
            }
            if (total_rank(next.slot) > 0) {
              for (int u = first_unit; u < units; u += unit_stride) ExpandUnit<T>(p, next.slot, u).prefetch();
            }
          }
#pragma unroll
          for (int i = 0; i < 2; ++i)
            x[i] = work.rows[i] >= 0 ? static_cast<const T*>(p.x) + work.rows[i] * p.x_stride : nullptr;
        }
        shrink<T, kTiles, 1>(matrix, work.slot.a, p.k, begin, ranks, steps, x, num_rows, parts,
                             [&](int row, int rank, float sum) { sums[row * ranks + rank] = sum; });
      });
    }
    cluster::arrive();
    cluster::wait();
    for (int i = thread; i < num_rows * ranks; i += kLoraThreads) {
      float sum = 0.0F;
#pragma unroll
      for (int j = 0; j < kLoraClusterBlocks; ++j) sum += cluster::load(cluster::address_of(sums + i, j));
      h[i / ranks * layout.h_stride + i % ranks] = from_float<T>(sum);
    }
    __syncthreads();
    for (int u = first_unit; has_unit && u < units; u += unit_stride) {
      // The next unit's are under way meanwhile.
      const bool has_more = u + unit_stride < units;
      ExpandUnit<T> following(p, work.slot, has_more ? u + unit_stride : u);
      uint2 following_b[4];
      ExpandOutputs<T> following_outputs;
      if (has_more) {
        following.load(following_b, 0);
        following_outputs.load(p, following, work.rows);
      }
      if (unit.rank > 0) expand(unit, b, outputs, h, layout.h_stride, num_rows);
      if (!has_more) break;
      unit = following;
      outputs = following_outputs;
#pragma unroll
      for (int i = 0; i < 4; ++i) b[i] = following_b[i];
    }
    work = next;
  }
  cluster::arrive();  // has read what others have
  cluster::wait();    // before this block's shared memory is gone
#endif
}

}  // namespace quire::cuda
