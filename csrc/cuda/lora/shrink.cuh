// h = a x, of up to 16 rows at a time. Operands come from memory in 16 bytes a lane and go to the registers
// of tensor cores that they lie in: an element's place in the depth of a product is anyone's, as long as both
// operands agree.
//
// These kernels are short. Of few rows, what decides is how many reads of a warp wait for each other, and how
// many of its instructions do: there are few warps to take turns.
#pragma once

#include <algorithm>

#include "common/cluster.cuh"
#include "common/dependent_launch.cuh"
#include "common/divisor.h"
#include "common/tensor_core.cuh"
#include "common/weight_stream.cuh"
#include "lora/params.cuh"

namespace quire::cuda {

constexpr int kLoraThreads = 256, kLoraWarps = kLoraThreads / 32;
constexpr int kShrinkDepth = 32;  // of k, in a step of a warp

// A step: rows x [16, 32] of which a lane has 16 bytes of rows lane / 4 and eight more, times a [8, 32].
template <typename T>
__device__ __forceinline__ void shrink_step(float (&sums)[4], const uint4& a, const uint4 (&x)[2]) {
  const uint32_t low[4] = {x[0].x, x[1].x, x[0].y, x[1].y};
  const uint32_t high[4] = {x[0].z, x[1].z, x[0].w, x[1].w};
  multiply_add<T>(sums, low, a.x, a.y);
  multiply_add<T>(sums, high, a.z, a.w);
}

// ---- one row --------------------------------------------------------------------------------------

constexpr int kMinOneRowThreads = 128, kMaxOneRowThreads = 512;
constexpr int kOneRowAtOnce = 4;  // of eight elements

// As many as read all of a row at once.
inline unsigned one_row_threads(int k) {
  return static_cast<unsigned>(
      std::clamp(ceil_div(k, 8 * kOneRowAtOnce * 32) * 32, kMinOneRowThreads, kMaxOneRowThreads));
}

// A block has one rank, and is small enough to run beside those of the linear (row_slots_layout.h), which
// waits for it: all that it reads of `a`, or the first of it, is there when the row is.
template <typename T>
__global__ void __launch_bounds__(kMaxOneRowThreads)
    lora_shrink_one_row_kernel(const __grid_constant__ LoraParams p) {
  __shared__ float parts[kMaxOneRowThreads / 32];
  const int thread = static_cast<int>(threadIdx.x), step = 8 * static_cast<int>(blockDim.x),
            rank = static_cast<int>(blockIdx.x);
  let_next_start();
  const LoraSegment segment = load_segment(p, 0);
  const int num_segments = __ldcg(p.num_segments);
  if (num_segments == 0) return wait_for_inputs();
  const LoraSlot* slot = slot_of(p, segment);
  const int4 ranks = load_ranks(slot);
  const T* a = static_cast<const T*>(load_pointer(&slot->a)) + static_cast<int64_t>(rank) * p.k;
  if (rank >= ranks.x + ranks.y + ranks.z + ranks.w) return wait_for_inputs();
  const T* x = static_cast<const T*>(p.x);
  float sum = 0.0F;
#pragma unroll 1
  for (int from = 8 * thread; from < p.k; from += kOneRowAtOnce * step) {
    uint4 w[kOneRowAtOnce];
#pragma unroll
    for (int i = 0; i < kOneRowAtOnce; ++i) {
      if (from + i * step < p.k) w[i] = load_weight(a + from + i * step);
    }
    wait_for_inputs();
#pragma unroll
    for (int i = 0; i < kOneRowAtOnce; ++i) {
      if (from + i * step < p.k) sum = dot(sum, w[i], Vec<T>::load(x + from + i * step));
    }
  }
  wait_for_inputs();
  sum = warp_sum(sum);
  if (thread % 32 == 0) parts[thread / 32] = sum;
  __syncthreads();
  if (thread == 0) {
    sum = 0.0F;
    for (int w = 0; w < static_cast<int>(blockDim.x) / 32; ++w) sum += parts[w];
    static_cast<T*>(p.h)[rank] = from_float<T>(sum);
  }
}

// ---- few rows -------------------------------------------------------------------------------------

// A unit is 16 ranks at a time of a segment. While there are few of them a cluster's four blocks share the
// depth of a unit, or two of them that of one, and their warps that; else each block has units of its own,
// one after the other. The grid is the same: how many adapters a step has is known on the device alone.
constexpr int kShrinkSplits = 4;  // blocks of a cluster
constexpr int kShrinkRanks = 16;
constexpr int kShrinkSums = kLoraSegmentRows * kShrinkRanks;
// Units of a segment: where it has more ranks than these take, they go on behind each other.
constexpr int kMaxShrinkTiles = 4;

// What is read of a unit before its matrix.
template <typename T>
struct ShrinkTask {
  const T* a;     // of the lane's rank of the first eight, and element
  const T* x[2];  // the lane's rows. One that the segment has not is another one, whose sums nobody stores.
  int ranks, first;
  int begin, last;  // rows of the batch; of the segment

  __device__ __forceinline__ void find(const LoraParams& p, const LoraSegment& segment, int tile) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const LoraSlot* slot = slot_of(p, segment);
    const int4 each = load_ranks(slot);
    const void* matrix = load_pointer(&slot->a);
    begin = segment.begin;
    last = segment.end - segment.begin - 1;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      x[i] = static_cast<const T*>(p.x) + __ldcg(p.rows + begin + min(lane / 4 + 8 * i, last)) * p.x_stride +
             lane % 4 * 8;
    first = tile * kShrinkRanks;
    ranks = each.x + each.y + each.z + each.w;
    a = static_cast<const T*>(matrix) + static_cast<int64_t>(first + lane / 4) * p.k + lane % 4 * 8;
  }
};

// kSteps of a unit, all of whose reads are under way at once, of up to eight rows, or of more. `next`: from
// the first eight ranks to the others.
template <int kSteps, bool kIsMore, typename T>
__device__ __forceinline__ void multiply_steps(float (&sums)[2][4], const T* a, int64_t next, const T* x0,
                                               const T* x1) {
  uint4 w[kSteps][2], in[kSteps][2];
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    w[s][0] = load_weight(a + s * kShrinkDepth);
    w[s][1] = load_weight(a + s * kShrinkDepth + next);
  }
  wait_for_inputs();
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    in[s][0] = *reinterpret_cast<const uint4*>(x0 + s * kShrinkDepth);
    if constexpr (kIsMore) {
      in[s][1] = *reinterpret_cast<const uint4*>(x1 + s * kShrinkDepth);
    } else {
      in[s][1] = in[s][0];
    }
  }
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    shrink_step<T>(sums[0], w[s][0], in[s]);
    shrink_step<T>(sums[1], w[s][1], in[s]);
  }
}

// `tiles`: of a segment. Depths are whole steps. Of the next unit a block finds what it reads while that of
// this one is on its way.
template <typename T>
__global__ void __launch_bounds__(kLoraThreads, 2)
    lora_shrink_few_rows_kernel(const __grid_constant__ LoraParams p, int tiles, Divisor by_tiles) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  __shared__ float parts[kLoraWarps][kShrinkSums], sums[kShrinkSums];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
  let_next_start();
  const int units = __ldcg(p.num_segments) * tiles;
  const int shift = units <= blocks / kShrinkSplits ? 2 : units <= blocks / 2 ? 1 : 0, num_parts = 1 << shift;
  int index = block >> shift;
  const int part = block & (num_parts - 1), stride = blocks >> shift;
  if (index >= units && block > 0) return;  // as those that share it
  if (index >= units) return wait_for_inputs();
  // Of a warp, in fours: these are read at once.
  const int steps = p.k / kShrinkDepth,
            each = (((steps + kLoraWarps * num_parts - 1) >> (shift + 3)) + 3) & ~3;
  static_assert(kShrinkSplits == 4 && kLoraWarps == 8 && kShrinkSums == kLoraThreads);
  const int begin = min((part * kLoraWarps + warp) * each, steps), end = min(begin + each, steps);
  LoraSegment segment = load_segment(p, by_tiles.quotient(index));
  ShrinkTask<T> task, following;
  bool has_task = false;
#pragma unroll 1
  while (true) {
    const bool has_more = index < units;
    if (has_more) {
      following.find(p, segment, by_tiles.rest(index));
      index += stride;
      if (index < units) segment = load_segment(p, by_tiles.quotient(index));
    }
#pragma unroll 1
    for (; has_task && task.first < task.ranks; task.first += tiles * kShrinkRanks) {
      float made[2][4] = {};
      const T *a = task.a + begin * kShrinkDepth, *x0 = task.x[0] + begin * kShrinkDepth,
              *x1 = task.x[1] + begin * kShrinkDepth;
      // Ranks are multiples of eight; what there is none of is read twice, and not stored.
      const int64_t next = task.first + 8 < task.ranks ? int64_t{8} * p.k : 0;
      int left = end - begin;
      const auto multiply = [&]<int kSteps, bool kIsMore>() {
        multiply_steps<kSteps, kIsMore>(made, a, next, x0, x1);
        a += kSteps * kShrinkDepth;
        x0 += kSteps * kShrinkDepth;
        x1 += kSteps * kShrinkDepth;
        left -= kSteps;
      };
      if (task.last < 8) {
#pragma unroll 1
        while (left >= 8) multiply.template operator()<8, false>();
      } else {
#pragma unroll 1
        while (left >= 6) multiply.template operator()<6, true>();
      }
#pragma unroll 1
      while (left >= 4) multiply.template operator()<4, true>();
#pragma unroll 1
      while (left > 0) multiply.template operator()<1, true>();
      wait_for_inputs();
      float* of_lane = &parts[warp][lane / 4 * kShrinkRanks + lane % 4 * 2];
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        *reinterpret_cast<float2*>(of_lane + 8 * t) = float2{made[t][0], made[t][1]};
        *reinterpret_cast<float2*>(of_lane + 8 * kShrinkRanks + 8 * t) = float2{made[t][2], made[t][3]};
      }
      __syncthreads();
      float sum = 0.0F;
#pragma unroll
      for (const auto& of_warp : parts) sum += of_warp[thread];
      // Each block finishes a part of the rows.
      const int sums_of_part = kShrinkSums >> shift, i = part * sums_of_part + thread;
      if (num_parts > 1) {
        sums[thread] = sum;
        cluster::arrive();
        cluster::wait();
        if (thread < sums_of_part) {
          const int first_part = block % kShrinkSplits - part;
          sum = cluster::load(cluster::address_of(sums + i, first_part)) +
                cluster::load(cluster::address_of(sums + i, first_part + 1));
          if (num_parts == 4)
            sum += cluster::load(cluster::address_of(sums + i, 2)) +
                   cluster::load(cluster::address_of(sums + i, 3));
        }
        cluster::arrive();
      }
      const int row = i / kShrinkRanks, rank = task.first + i % kShrinkRanks;
      if (thread < sums_of_part && row <= task.last && rank < task.ranks)
        static_cast<T*>(p.h)[static_cast<int64_t>(task.begin + row) * p.h_stride + rank] = from_float<T>(sum);
      if (num_parts > 1) {
        cluster::wait();  // before what others read is written again, or gone
      } else {
        __syncthreads();
      }
      task.a += static_cast<int64_t>(tiles * kShrinkRanks) * p.k;
    }
    if (!has_more) break;
    task = following;
    has_task = true;
  }
  wait_for_inputs();
#endif
}

// ---- many rows ------------------------------------------------------------------------------------

constexpr int kShrinkTiles = 8;  // of eight ranks, at once

// Of dynamic shared memory: what is on its way to a block, and then what its warps made.
constexpr int kLargeRing = 192 << 10, kSmallRing = 96 << 10;

// Segments that a block takes at once if they are one adapter's, which is then read once for all.
template <int kRing>
constexpr int kShrinkSegments = kRing == kLargeRing ? 4 : 2;

// Ranks [first, first + 8 * kTiles) of up to 16 * kRowTiles rows. Each warp has every eighth step of the
// depth, which comes through slots of its own.
template <typename T, int kRing, int kTiles, int kRowTiles>
__device__ __forceinline__ void shrink_many_rows(const LoraParams& p, const LoraSegment& segment, int first,
                                                 int ranks, const T* a, std::byte* ring) {
  constexpr int kRowBytes = kShrinkDepth * static_cast<int>(sizeof(T)), kEightBytes = 8 * kRowBytes;
  constexpr int kSlotBytes = (2 * kRowTiles + kTiles) * kEightBytes;
  constexpr int kSlots = std::min(kRing / kLoraWarps / kSlotBytes, 8);
  static_assert(kSlots >= 2);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const T* x[2 * kRowTiles];
#pragma unroll
  for (int i = 0; i < 2 * kRowTiles; ++i) {
    const int row = load_row(p, segment, lane / 4 + 8 * i);
    x[i] = row >= 0 ? static_cast<const T*>(p.x) + row * p.x_stride : nullptr;
  }
  a += static_cast<int64_t>(first + lane / 4) * p.k;
  const uint32_t mine = shared_address(ring) + static_cast<uint32_t>(warp * kSlots * kSlotBytes + 16 * lane);
  const int stride = kLoraWarps * kShrinkDepth;
  int asked = warp * kShrinkDepth + lane % 4 * 8;
  const auto ask = [&](int slot) {
    const uint32_t to = mine + static_cast<uint32_t>(slot * kSlotBytes);
    const bool is_there = asked < p.k;
#pragma unroll
    for (int i = 0; i < 2 * kRowTiles; ++i) {
      const bool is_row = is_there && x[i] != nullptr;
      copy_async(to + i * kEightBytes, is_row ? x[i] + asked : p.x, is_row);
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const bool is_rank = is_there && first + 8 * i < ranks;
      copy_async(to + (2 * kRowTiles + i) * kEightBytes,
                 is_rank ? a + asked + static_cast<int64_t>(8 * i) * p.k : p.x, is_rank);
    }
    commit_copies();
    asked += stride;
  };
  float sums[kRowTiles][kTiles][4] = {};
#pragma unroll
  for (int i = 0; i < kSlots - 1; ++i) ask(i);
  int slot = 0;
#pragma unroll 1
  for (int at = warp * kShrinkDepth; at < p.k; at += stride) {
    wait_copies<kSlots - 2>();
    __syncwarp();
    ask(slot == 0 ? kSlots - 1 : slot - 1);
    const std::byte* from = ring + (warp * kSlots + slot) * kSlotBytes + 16 * lane;
    uint4 w[kTiles], in[kRowTiles][2];
#pragma unroll
    for (int i = 0; i < 2 * kRowTiles; ++i)
      in[i / 2][i % 2] = *reinterpret_cast<const uint4*>(from + i * kEightBytes);
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
      w[i] = *reinterpret_cast<const uint4*>(from + (2 * kRowTiles + i) * kEightBytes);
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) shrink_step<T>(sums[j][i], w[i], in[j]);
    }
    slot = slot + 1 == kSlots ? 0 : slot + 1;
  }
  wait_copies<0>();
  __syncthreads();
  // [warps][rows][8 * kTiles]
  constexpr int kRanks = 8 * kTiles, kRows = kLoraSegmentRows * kRowTiles;
  static_assert(kLoraWarps * kRows * kRanks * sizeof(float) <= kRing);
  auto* parts = reinterpret_cast<float*>(ring);
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

template <typename T, int kRing, int kRowTiles>
__device__ __forceinline__ void shrink_all_ranks(const LoraParams& p, const LoraSegment& segment,
                                                 std::byte* ring) {
  const LoraSlot* slot = slot_of(p, segment);
  const int4 all = load_ranks(slot);
  const int ranks = all.x + all.y + all.z + all.w;
  const T* a = static_cast<const T*>(load_pointer(&slot->a));
  for (int first = 0; first < ranks; first += 8 * kShrinkTiles) {
    const int left = ranks - first;
    if (left <= 16) {
      shrink_many_rows<T, kRing, 2, kRowTiles>(p, segment, first, ranks, a, ring);
    } else if (left <= 32) {
      shrink_many_rows<T, kRing, 4, kRowTiles>(p, segment, first, ranks, a, ring);
    } else if (left <= 48) {
      shrink_many_rows<T, kRing, 6, kRowTiles>(p, segment, first, ranks, a, ring);
    } else {
      shrink_many_rows<T, kRing, kShrinkTiles, kRowTiles>(p, segment, first, ranks, a, ring);
    }
  }
}

template <typename T, int kRing>
__global__ void __launch_bounds__(kLoraThreads, 1)
    lora_shrink_many_rows_kernel(const __grid_constant__ LoraParams p) {
  extern __shared__ __align__(16) std::byte ring[];
  constexpr int kSegments = kShrinkSegments<kRing>;
  let_next_start();
  const int first = static_cast<int>(blockIdx.x) * kSegments;
  const int count = min(__ldcg(p.num_segments) - first, kSegments);
  wait_for_inputs();
  if (count <= 0) return;
  LoraSegment all = load_segment(p, first);
  bool is_one = true;
  for (int i = 1; i < count; ++i) {
    const LoraSegment next = load_segment(p, first + i);
    is_one = is_one && next.slot == all.slot && next.begin == all.begin + i * kLoraSegmentRows;
    all.end = is_one ? next.end : all.end;
  }
  if (is_one) return shrink_all_ranks<T, kRing, kSegments>(p, all, ring);
  for (int i = 0; i < count; ++i) shrink_all_ranks<T, kRing, 1>(p, load_segment(p, first + i), ring);
}

}  // namespace quire::cuda
