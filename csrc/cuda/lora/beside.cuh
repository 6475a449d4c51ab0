// What adapters add to a linear of some tens of rows, by kernels that are launched behind it: `a` is
// multiplied while the weight streams, in blocks that have a place beside the linear's, and the first of `b`
// is there when the linear ends. The linear's blocks have all waited for their inputs when they let these
// kernels start.
//
// A read waits for microseconds while a weight streams. So what a warp needs is found in as few reads that
// wait for each other as can be, and is then asked for at once, as much as there are registers for; and
// nothing of it may be spilled, which is memory too.
#pragma once

#include "lora/expand.cuh"
#include "lora/params.cuh"

namespace quire::cuda {

constexpr int kBesideThreads = 128, kBesideWarps = kBesideThreads / 32;
// So many blocks have all registers of a multiprocessor, of which the linear leaves 28,672: for one of the
// first kernel, or for two of the second, or one where it is gated.
constexpr int kShrinkBesideBlocks = 3;
template <typename Gate>
constexpr int kExpandBesideBlocks = std::is_same_v<Gate, NotGated> ? 5 : 4;
constexpr int kMaxBesideRows = 64;   // and so many segments at most
constexpr int kMaxBesideSplits = 2;  // of the depth

// A block's copy of a batch's segments, in one read.
struct BesideSegments {
  static constexpr int kWords = sizeof(LoraSegment) / sizeof(int32_t);
  int32_t words[kMaxBesideRows * kWords];
  int count;

  // By all threads. `is_all`: those without an adapter count, too.
  __device__ __forceinline__ void load(const LoraParams& p, bool is_all) {
    const auto* from = reinterpret_cast<const int32_t*>(p.segments);
    const int thread = static_cast<int>(threadIdx.x), there = min(p.max_segments, kMaxBesideRows) * kWords;
#pragma unroll
    for (int i = 0; i < kMaxBesideRows * kWords; i += kBesideThreads) {
      if (i + thread < there) words[i + thread] = __ldcg(from + i + thread);
    }
    if (thread == kBesideThreads - 1) count = __ldcg(p.num_segments + (is_all ? 1 : 0));
    __syncthreads();
  }
  __device__ __forceinline__ LoraSegment operator[](int index) const {
    const int32_t* of = words + index * kWords;
    return {of[0], of[1], of[2]};
  }
};

}  // namespace quire::cuda
