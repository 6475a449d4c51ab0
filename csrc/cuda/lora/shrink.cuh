// h = a x, of up to 16 rows at a time. Operands come from memory in 16 bytes a lane and go to the registers
// of tensor cores that they lie in: an element's place in the depth of a product is anyone's, as long as both
// operands agree.
//
// These kernels are short, and what they mostly wait for is memory, and their own code, which nobody has run
// since the last linear: it is kept small.
#pragma once

#include "common/cluster.cuh"
#include "common/dependent_launch.cuh"
#include "common/tensor_core.cuh"
#include "lora/params.cuh"

namespace quire::cuda {

constexpr int kLoraThreads = 256, kLoraWarps = kLoraThreads / 32;
constexpr int kShrinkDepth = 32;  // of k, in a step of a warp

__device__ __forceinline__ uint4 load_streamed(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

// A step: rows x [16, 32] of which a lane has 16 bytes of rows lane / 4 and eight more, times a [8, 32].
template <typename T>
__device__ __forceinline__ void shrink_step(float (&sums)[4], const uint4& a, const uint4 (&x)[2]) {
  const uint32_t low[4] = {x[0].x, x[1].x, x[0].y, x[1].y};
  const uint32_t high[4] = {x[0].z, x[1].z, x[0].w, x[1].w};
  multiply_add<T>(sums, low, a.x, a.y);
  multiply_add<T>(sums, high, a.z, a.w);
}

// ---- few rows -------------------------------------------------------------------------------------

// A cluster has eight ranks of a segment, its blocks a share of the depth each, and its warps of that. For
// one row blocks are small enough to run beside those of its linear (row_slots_layout.h).
constexpr int kMaxShrinkSplits = 8;  // blocks of a cluster
constexpr int kShrinkAtOnce = 8;     // steps whose reads are under way
constexpr int kShrinkSums = kLoraSegmentRows * 8;

inline unsigned shrink_few_rows_shared_bytes(unsigned threads) {
  return (threads / 32 + 2) * kShrinkSums * static_cast<unsigned>(sizeof(float));
}

template <typename T>
__global__ void __launch_bounds__(kLoraThreads, 2)
    lora_shrink_few_rows_kernel(const __grid_constant__ LoraParams p, int num_splits) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) float few_rows_shared[];
  float* parts = few_rows_shared;  // [warps][kShrinkSums]
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  float* sums = parts + warps * kShrinkSums;  // of this segment, and of the next
  const int split = static_cast<int>(blockIdx.x) & (num_splits - 1);
  const int first = static_cast<int>(blockIdx.x) / num_splits * 8;
  let_next_start();
  const int num_segments = __ldcg(p.num_segments);
  const bool is_idle = static_cast<int>(blockIdx.y) >= num_segments;  // as its whole cluster
  if (is_idle && !is_first_block()) return;
  if (is_idle) return wait_for_inputs();
  const int steps = (p.k + kShrinkDepth - 1) / kShrinkDepth;
  const int each = (steps + num_splits * warps - 1) / (num_splits * warps) * kShrinkDepth;
  const int begin = (split * warps + warp) * each, end = min(begin + each, p.k);
  bool has_waited = false;
  for (int index = static_cast<int>(blockIdx.y); index < num_segments; index += static_cast<int>(gridDim.y)) {
    const LoraSegment segment = load_segment(p, index);
    const LoraSlot* slot = slot_of(p, segment);
    const int4 ranks = load_ranks(slot);
    if (first >= ranks.x + ranks.y + ranks.z + ranks.w) continue;  // as its whole cluster
    const T* a = static_cast<const T*>(load_pointer(&slot->a)) + static_cast<int64_t>(first + lane / 4) * p.k;
    const T* x[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = load_row(p, segment, lane / 4 + 8 * i);
      x[i] = row >= 0 ? static_cast<const T*>(p.x) + row * p.x_stride : nullptr;
    }
    float made[4] = {};
#pragma unroll 1
    for (int from = begin; from < end || from == begin; from += kShrinkAtOnce * kShrinkDepth) {
      const int at = from + lane % 4 * 8;
      uint4 w[kShrinkAtOnce];
#pragma unroll
      for (int s = 0; s < kShrinkAtOnce; ++s)
        w[s] = at + s * kShrinkDepth < end ? load_streamed(a + at + s * kShrinkDepth) : uint4{};
      if (!has_waited) wait_for_inputs();
      has_waited = true;
#pragma unroll
      for (int half = 0; half < kShrinkAtOnce; half += kShrinkAtOnce / 2) {
        uint4 in[kShrinkAtOnce / 2][2];
#pragma unroll
        for (int s = 0; s < kShrinkAtOnce / 2; ++s) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            in[s][i] = at + (half + s) * kShrinkDepth < end && x[i] != nullptr
                           ? *reinterpret_cast<const uint4*>(x[i] + at + (half + s) * kShrinkDepth)
                           : uint4{};
          }
        }
#pragma unroll
        for (int s = 0; s < kShrinkAtOnce / 2; ++s) shrink_step<T>(made, w[half + s], in[s]);
        if (from + (half + kShrinkAtOnce / 2) * kShrinkDepth >= end) break;
      }
    }
    float* part = parts + warp * kShrinkSums + lane / 4 * 8 + lane % 4 * 2;
    *reinterpret_cast<float2*>(part) = float2{made[0], made[1]};
    *reinterpret_cast<float2*>(part + 8 * 8) = float2{made[2], made[3]};
    __syncthreads();
    if (thread < kShrinkSums) {
      float sum = 0.0F;
      for (int w = 0; w < warps; ++w) sum += parts[w * kShrinkSums + thread];
      sums[thread] = sum;
    }
    cluster::arrive();
    cluster::wait();
    // Each block finishes a part of the rows.
    const int count = kShrinkSums / num_splits, i = split * count + thread;
    if (thread < count && segment.begin + i / 8 < segment.end) {
      float sum = 0.0F;
      for (int j = 0; j < num_splits; ++j) sum += cluster::load(cluster::address_of(sums + i, j));
      static_cast<T*>(p.h)[static_cast<int64_t>(segment.begin + i / 8) * p.h_stride + first + i % 8] =
          from_float<T>(sum);
    }
    sums = parts + warps * kShrinkSums + (sums == parts + warps * kShrinkSums ? kShrinkSums : 0);
  }
  if (!has_waited) wait_for_inputs();
  cluster::arrive();  // has read what others have
  cluster::wait();    // before this block's shared memory is gone
#endif
}

// ---- many rows ------------------------------------------------------------------------------------

constexpr int kShrinkSegments = 2;  // of a block; mostly of one adapter, which is then read once for both
constexpr int kShrinkTiles = 8;     // of eight ranks, at once

// Ranks [first, first + 8 * kTiles) of up to 16 * kRowTiles rows.
template <typename T, int kTiles, int kRowTiles>
__device__ __forceinline__ void shrink_many_rows(const LoraParams& p, const LoraSegment& segment, int first,
                                                 int ranks, const T* a, float* parts) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int steps = (p.k + kShrinkDepth - 1) / kShrinkDepth, each = (steps + kLoraWarps - 1) / kLoraWarps;
  const int begin = warp * each * kShrinkDepth, end = min(begin + each * kShrinkDepth, p.k);
  const T* x[kRowTiles][2];
#pragma unroll
  for (int i = 0; i < 2 * kRowTiles; ++i) {
    const int row = load_row(p, segment, lane / 4 + 8 * i);
    x[i / 2][i % 2] = row >= 0 ? static_cast<const T*>(p.x) + row * p.x_stride : nullptr;
  }
  a += static_cast<int64_t>(first + lane / 4) * p.k;
  float sums[kRowTiles][kTiles][4] = {};
#pragma unroll(kTiles <= 2 ? 2 : 1)
  for (int from = begin; from < end; from += kShrinkDepth) {
    const int at = from + lane % 4 * 8;
    uint4 w[kTiles], in[kRowTiles][2];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      w[i] = at < p.k && first + 8 * i < ranks ? load_streamed(a + at + static_cast<int64_t>(8 * i) * p.k)
                                               : uint4{};
    }
#pragma unroll
    for (int i = 0; i < 2 * kRowTiles; ++i) {
      in[i / 2][i % 2] = at < p.k && x[i / 2][i % 2] != nullptr
                             ? *reinterpret_cast<const uint4*>(x[i / 2][i % 2] + at)
                             : uint4{};
    }
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) shrink_step<T>(sums[j][i], w[i], in[j]);
    }
  }
  // [warps][rows][8 * kTiles]
  constexpr int kRanks = 8 * kTiles, kRows = kLoraSegmentRows * kRowTiles;
#pragma unroll
  for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = j * kLoraSegmentRows + lane / 4 + 8 * half;
        *reinterpret_cast<float2*>(parts + (warp * kRows + row) * kRanks + 8 * i + lane % 4 * 2) =
            float2{sums[j][i][2 * half], sums[j][i][2 * half + 1]};
      }
    }
  }
  __syncthreads();
  T* h = static_cast<T*>(p.h) + static_cast<int64_t>(segment.begin) * p.h_stride + first;
  for (int i = thread; i < kRows * kRanks; i += kLoraThreads) {
    const int row = i / kRanks, rank = i % kRanks;
    if (segment.begin + row >= segment.end || first + rank >= ranks) continue;
    float sum = 0.0F;
#pragma unroll
    for (int w = 0; w < kLoraWarps; ++w) sum += parts[w * kRows * kRanks + i];
    h[static_cast<int64_t>(row) * p.h_stride + rank] = from_float<T>(sum);
  }
  __syncthreads();
}

template <typename T, int kRowTiles>
__device__ __forceinline__ void shrink_all_ranks(const LoraParams& p, const LoraSegment& segment,
                                                 float* parts) {
  const LoraSlot* slot = slot_of(p, segment);
  const int4 all = load_ranks(slot);
  const int ranks = all.x + all.y + all.z + all.w;
  const T* a = static_cast<const T*>(load_pointer(&slot->a));
  for (int first = 0; first < ranks; first += 8 * kShrinkTiles) {
    const int left = ranks - first;
    if (left <= 16) {
      shrink_many_rows<T, 2, kRowTiles>(p, segment, first, ranks, a, parts);
    } else if (left <= 32) {
      shrink_many_rows<T, 4, kRowTiles>(p, segment, first, ranks, a, parts);
    } else if (left <= 48) {
      shrink_many_rows<T, 6, kRowTiles>(p, segment, first, ranks, a, parts);
    } else {
      shrink_many_rows<T, kShrinkTiles, kRowTiles>(p, segment, first, ranks, a, parts);
    }
  }
}

// Of dynamic shared memory.
inline int shrink_shared_bytes(int max_total_rank) {
  const int ranks = max_total_rank <= 32 ? 32 : max_total_rank <= 48 ? 48 : 8 * kShrinkTiles;
  return kLoraWarps * kShrinkSegments * kLoraSegmentRows * ranks * static_cast<int>(sizeof(float));
}

template <typename T>
__global__ void __launch_bounds__(kLoraThreads, 2)
    lora_shrink_many_rows_kernel(const __grid_constant__ LoraParams p) {
  extern __shared__ __align__(16) std::byte shared[];
  float* parts = reinterpret_cast<float*>(shared);
  let_next_start();
  const int first = static_cast<int>(blockIdx.x) * kShrinkSegments;
  const int num_segments = __ldcg(p.num_segments);
  wait_for_inputs();
  if (first >= num_segments) return;
  const LoraSegment one = load_segment(p, first);
  if (first + 1 == num_segments) return shrink_all_ranks<T, 1>(p, one, parts);
  const LoraSegment other = load_segment(p, first + 1);
  if (one.slot == other.slot && one.end == other.begin && one.end - one.begin == kLoraSegmentRows)
    return shrink_all_ranks<T, 2>(p, {one.slot, one.begin, other.end}, parts);
  for (int i = 0; i < kShrinkSegments; ++i) shrink_all_ranks<T, 1>(p, load_segment(p, first + i), parts);
}

}  // namespace quire::cuda
