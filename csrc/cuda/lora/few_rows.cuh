// Few rows: both products in one kernel. A cluster of blocks has a segment: each block a share of the depth of
// `a`, whose sums the blocks add up from each other's shared memory, and then a share of the outputs. Where
// there are fewer segments than clusters, several have the same one and divide its outputs; each then makes all
// of h, which is less than what it would take to hand it on through memory.
#pragma once

#include "common/cluster.cuh"
#include "common/dependent_launch.cuh"
#include "lora/tiles.cuh"

namespace quire::cuda {

constexpr int kLoraClusterBlocks = 8;

// Of a block's dynamic shared memory.
struct LoraFewRowsShared {
  __host__ __device__ explicit LoraFewRowsShared(int max_total_rank)
      : sums_begin(shrink_floats(max_total_rank) * 4),
        sums_bytes(kLoraSegmentRows * max_total_rank * 4),
        h_stride(max_total_rank + 8),
        h_begin(sums_begin + 2 * sums_bytes),
        bytes(h_begin + kLoraSegmentRows * h_stride * 2) {}
  int sums_begin, sums_bytes, h_stride, h_begin, bytes;
};

// What this block will read of an adapter, on its way to the L2 cache.
template <typename T>
__device__ __forceinline__ void prefetch_share(const LoraParams& p, const LoraShare& share, int rank,
                                               int first_unit, int unit_stride, int units) {
  const int thread = static_cast<int>(threadIdx.x);
  const int steps = (p.k + kShrinkDepth - 1) / kShrinkDepth, workers = kLoraClusterBlocks * kLoraWarps;
  const int depth = (steps + workers - 1) / workers * kLoraWarps * kShrinkDepth;
  const int begin = rank * depth, end = begin + depth < p.k ? begin + depth : p.k;
  constexpr int kLine = 128 / sizeof(T);
  const int lines = end > begin ? (end - begin + kLine - 1) / kLine : 0;
  for (int i = thread; i < lines * share.total_rank; i += kLoraThreads)
    prefetch_line(static_cast<const T*>(share.a) + static_cast<int64_t>(i / lines) * p.k + begin + i % lines * kLine);
  for (int unit = first_unit + thread / 32; unit < units; unit += unit_stride)
    ExpandUnit<T>(p, share, unit).prefetch_b();
}

template <typename T>
__global__ void __launch_bounds__(kLoraThreads)
    lora_few_rows_kernel(const __grid_constant__ LoraParams p, int max_total_rank) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) std::byte shared[];
  const LoraFewRowsShared layout(max_total_rank);
  float* parts = reinterpret_cast<float*>(shared);
  T* h = reinterpret_cast<T*>(shared + layout.h_begin);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  const int cluster = static_cast<int>(blockIdx.x) / kLoraClusterBlocks;
  const int rank = static_cast<int>(blockIdx.x) % kLoraClusterBlocks;
  const int num_clusters = static_cast<int>(gridDim.x) / kLoraClusterBlocks;
  let_next_start();

  const int num_segments = __ldcg(p.num_segments), units = expand_units(p);
  // So many clusters have the same segment; what is left over has none.
  const int sharers = num_segments > 0 && num_segments < num_clusters ? num_clusters / num_segments : 1;
  const int columns = num_clusters / sharers;  // segments at a time
  const int first = cluster % columns, sharer = cluster / columns;
  if (first >= num_segments || sharer >= sharers) return wait_for_inputs();  // as all of its cluster
  // Of warp 0.
  const int first_unit = (sharer * kLoraClusterBlocks + rank) * kLoraWarps;
  const int unit_stride = sharers * kLoraClusterBlocks * kLoraWarps;
  prefetch_share<T>(p, LoraShare(p, first), rank, first_unit, unit_stride, units);
  wait_for_inputs();
  int buffer = 0;
  for (int index = first; index < num_segments; index += columns, buffer ^= 1) {
    const LoraShare share(p, index);
    float* sums = reinterpret_cast<float*>(shared + layout.sums_begin + buffer * layout.sums_bytes);
    shrink<T>(p, share, rank, kLoraClusterBlocks, parts,
              [&](int row, int r, float sum) { sums[row * share.total_rank + r] = sum; });
    cluster::arrive();
    // What does not need h, meanwhile.
    const int unit = first_unit + warp;
    const bool has_unit = unit < units && share.total_rank > 0;
    const ExpandUnit<T> expanded(p, share, has_unit ? unit : 0);
    ExpandHead<T> head(p, share, expanded);
    cluster::wait();
    for (int i = thread; i < share.num_rows() * share.total_rank; i += kLoraThreads) {
      float sum = 0.0F;
#pragma unroll
      for (int j = 0; j < kLoraClusterBlocks; ++j) sum += cluster::load(cluster::address_of(sums + i, j));
      h[i / share.total_rank * layout.h_stride + i % share.total_rank] = from_float<T>(sum);
    }
    __syncthreads();
    const auto load = [](const T* from) { return *reinterpret_cast<const uint2*>(from); };
    if (has_unit) expand<T>(expanded, head, h, layout.h_stride, share.num_rows(), load);
    for (int next = unit + unit_stride; next < units && share.total_rank > 0; next += unit_stride) {
      const ExpandUnit<T> other(p, share, next);
      ExpandHead<T> start(p, share, other);
      expand<T>(other, start, h, layout.h_stride, share.num_rows(), load);
    }
  }
  cluster::arrive();  // has read what others have
  cluster::wait();    // before this block's shared memory is gone
#endif
}

}  // namespace quire::cuda
