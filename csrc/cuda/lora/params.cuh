// What the kernels of adapters read.
#pragma once

#include "common/types.cuh"
#include "ops.h"

namespace quire::cuda {

struct LoraParams {
  void* out;    // [T, *]
  void* gated;  // [T, n / 2] of all rows' activations; null: out is added to
  const void* x;
  const int32_t* rows;
  const LoraSegment* segments;
  const int32_t* num_segments;  // of rows with an adapter, and of all rows
  const LoraSlot* slots;
  void* h;  // [rows of the batch, h_stride]
  int64_t out_stride, gated_stride, x_stride, slot_stride;
  int h_stride;
  int k;
  int num_modules;
  int max_segments;
  LoraModule modules[kMaxLoraModules];
  int first_unit[kMaxLoraModules + 1];  // of a module (expand.cuh); of none, more than there are
};

// What lies in which slot, and which rows have it, does not change within a step, and may be read before the
// inputs are there (dependent_launch.cuh).
__device__ __forceinline__ LoraSegment load_segment(const LoraParams& p, int index) {
  const auto* from = reinterpret_cast<const int32_t*>(p.segments + index);
  return {__ldcg(from), __ldcg(from + 1), __ldcg(from + 2)};
}

__device__ __forceinline__ const LoraSlot* slot_of(const LoraParams& p, const LoraSegment& segment) {
  return p.slots + segment.slot * p.slot_stride;
}
__device__ __forceinline__ int4 load_ranks(const LoraSlot* slot) {
  return __ldcg(reinterpret_cast<const int4*>(slot->ranks));
}
__device__ __forceinline__ const void* load_pointer(const void* const* from) {
  return reinterpret_cast<const void*>(__ldcg(reinterpret_cast<const uint64_t*>(from)));
}

// Of a batch, the row that is at this place of a segment; -1: it has none there.
__device__ __forceinline__ int load_row(const LoraParams& p, const LoraSegment& segment, int place) {
  return segment.begin + place < segment.end ? __ldcg(p.rows + segment.begin + place) : -1;
}

// Where some blocks of a kernel have nothing to do, these end at once, and take no room from those in front
// of them; one of all waits for the inputs, and with it the kernel.
__device__ __forceinline__ bool is_first_block() { return blockIdx.x == 0 && blockIdx.y == 0; }

}  // namespace quire::cuda
