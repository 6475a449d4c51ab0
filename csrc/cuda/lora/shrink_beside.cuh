// h = a x beside the linear (beside.cuh), of up to 16 rows and 16 ranks at a time.
#pragma once

#include "common/divisor.h"
#include "lora/beside.cuh"
#include "lora/shrink.cuh"

namespace quire::cuda {

// 16 ranks at a time of a segment, and a part of the depth, which whoever multiplies by `b` adds up.
struct ShrinkBesideItem {
  const void* a;
  int rows[kLoraSegmentRows];  // of the batch; what the segment has less is its last one
  int begin, last;
  int split, first, ranks;
};

// What the linear's blocks have waited for was written when they let this kernel start, but the L1 cache may
// have what lay there before.
__device__ __forceinline__ uint4 load_input(const void* from) {
  return __ldcg(reinterpret_cast<const uint4*>(from));
}

// kSteps, all of whose reads are under way at once. `next`: from the first eight ranks to the others.
template <int kSteps, typename T>
__device__ __forceinline__ void multiply_beside(float (&sums)[2][4], const T* a, int64_t next, const T* x0,
                                                const T* x1, bool is_more) {
  uint4 w[kSteps][2];
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    w[s][0] = load_weight(a + s * kShrinkDepth);
    w[s][1] = load_weight(a + s * kShrinkDepth + next);
  }
  uint4 in[kSteps][2];
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    in[s][0] = load_input(x0 + s * kShrinkDepth);
    in[s][1] = is_more ? load_input(x1 + s * kShrinkDepth) : in[s][0];
  }
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    shrink_step<T>(sums[0], w[s][0], in[s]);
    shrink_step<T>(sums[1], w[s][1], in[s]);
  }
}

// p.h is of float32: [splits, rows of the batch, h_stride]. `tiles`: of a segment.
template <typename T>
__global__ void __launch_bounds__(kBesideThreads, kShrinkBesideBlocks)
    lora_shrink_beside_kernel(const __grid_constant__ LoraParams p, int tiles, Divisor by_tiles, int splits,
                              int split_stride) {
  constexpr int kItems = 2 * kBesideWarps;  // that a block finds at once, half a warp each
  __shared__ float sums[kBesideWarps][kShrinkSums];
  __shared__ ShrinkBesideItem items[kItems];
  __shared__ BesideSegments segments;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int stride = static_cast<int>(gridDim.x);
  let_next_start();
  segments.load(p, /*is_all=*/false);
  const int num_items = segments.count * tiles * splits;
  const int steps = p.k / kShrinkDepth, each = (steps + splits * kBesideWarps - 1) / (splits * kBesideWarps);
#pragma unroll 1
  for (int index = static_cast<int>(blockIdx.x); index < num_items; index += kItems * stride) {
    const int place = 2 * warp + lane / 16, mine = index + place * stride;
    const int unit = mine / splits, row = lane % 16;
    if (mine < num_items) {
      const LoraSegment segment = segments[by_tiles.quotient(unit)];
      ShrinkBesideItem& item = items[place];
      const int last = segment.end - segment.begin - 1;
      item.rows[row] = __ldcg(p.rows + segment.begin + min(row, last));
      if (row == 0) {
        const LoraSlot* slot = slot_of(p, segment);
        const int4 ranks = load_ranks(slot);
        item.a = load_pointer(&slot->a);
        item.begin = segment.begin;
        item.last = last;
        item.split = mine % splits;
        item.first = by_tiles.rest(unit) * kShrinkRanks;
        item.ranks = ranks.x + ranks.y + ranks.z + ranks.w;
      }
    }
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < kItems && index + i * stride < num_items; ++i) {
      const ShrinkBesideItem& item = items[i];
      const int begin = min((item.split * kBesideWarps + warp) * each, steps), end = min(begin + each, steps);
#pragma unroll 1
      for (int first = item.first; first < item.ranks; first += tiles * kShrinkRanks) {
        float made[2][4] = {};
        const int column = begin * kShrinkDepth + lane % 4 * 8;
        const T* a = static_cast<const T*>(item.a) + static_cast<int64_t>(first + lane / 4) * p.k + column;
        const T *x0 = static_cast<const T*>(p.x) + item.rows[lane / 4] * p.x_stride + column,
                *x1 = static_cast<const T*>(p.x) + item.rows[lane / 4 + 8] * p.x_stride + column;
        // Ranks are multiples of eight; what there is none of is read twice, and not stored.
        const int64_t next = first + 8 < item.ranks ? int64_t{8} * p.k : 0;
        int left = end - begin;
        const auto multiply = [&]<int kSteps>() {
          multiply_beside<kSteps>(made, a, next, x0, x1, item.last >= 8);
          a += kSteps * kShrinkDepth;
          x0 += kSteps * kShrinkDepth;
          x1 += kSteps * kShrinkDepth;
          left -= kSteps;
        };
#pragma unroll 1
        while (left >= 8) multiply.template operator()<8>();
        if (left >= 4) multiply.template operator()<4>();
#pragma unroll 1
        while (left > 0) multiply.template operator()<1>();
        float* of_lane = &sums[warp][lane / 4 * kShrinkRanks + lane % 4 * 2];
#pragma unroll
        for (int t = 0; t < 2; ++t) {
          *reinterpret_cast<float2*>(of_lane + 8 * t) = float2{made[t][0], made[t][1]};
          *reinterpret_cast<float2*>(of_lane + 8 * kShrinkRanks + 8 * t) = float2{made[t][2], made[t][3]};
        }
        __syncthreads();
        float* h = static_cast<float*>(p.h) + item.split * split_stride + item.begin * p.h_stride + first;
        for (int at = thread; at < kShrinkSums; at += kBesideThreads) {
          const int to = at / kShrinkRanks, rank = at % kShrinkRanks;
          if (to > item.last || first + rank >= item.ranks) continue;
          float sum = 0.0F;
#pragma unroll
          for (const auto& of_warp : sums) sum += of_warp[at];
          h[to * p.h_stride + rank] = sum;
        }
        __syncthreads();
      }
    }
  }
  // For what `b` is added to: who waits for this kernel has waited for the linear.
  if (blockIdx.x == 0) wait_for_inputs();
}

}  // namespace quire::cuda
