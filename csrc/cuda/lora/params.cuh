// What the kernels of adapters read.
#pragma once

#include "common/types.cuh"
#include "ops.h"

namespace quire::cuda {

struct LoraParams {
  void* out;  // [T, *]
  const void* x;
  const int32_t* rows;
  const LoraSegment* segments;
  const int32_t* num_segments;
  const LoraSlot* slots;
  void* h;  // [rows of the batch, h_stride], where what `a` makes goes through memory
  int64_t out_stride, x_stride, slot_stride;
  int h_stride;
  int k;
  int num_modules;
  LoraModule modules[kMaxLoraModules];
};

// An adapter's share of a linear. What lies in which slot, and which rows have it, does not change within a
// step, and may be read before the inputs are there (dependent_launch.cuh).
struct LoraShare {
  LoraSegment segment;
  const LoraSlot* slot;
  const void* a;
  int ranks[kMaxLoraModules];
  int total_rank;  // 0: it has nothing for this linear

  __device__ LoraShare(const LoraParams& p, int index) {
    const auto* from = reinterpret_cast<const int32_t*>(p.segments + index);
    segment = {__ldcg(from), __ldcg(from + 1), __ldcg(from + 2)};
    slot = p.slots + segment.slot * p.slot_stride;
    a = reinterpret_cast<const void*>(__ldcg(reinterpret_cast<const uint64_t*>(&slot->a)));
    total_rank = 0;
#pragma unroll
    for (int m = 0; m < kMaxLoraModules; ++m) {
      ranks[m] = a != nullptr ? __ldcg(slot->ranks + m) : 0;
      total_rank += ranks[m];
    }
  }
  __device__ int num_rows() const { return segment.end - segment.begin; }
  template <typename T>
  __device__ const T* b(int module) const {
    return reinterpret_cast<const T*>(__ldcg(reinterpret_cast<const uint64_t*>(slot->b + module)));
  }
};

}  // namespace quire::cuda
