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
  const LoraSegment* segments;  // [max_segments]
  const int32_t* num_segments;  // of rows with an adapter, and of all rows
  const LoraSlot* slots;
  void* h;  // [rows of the batch, h_stride], where what `a` makes goes through memory
  int64_t out_stride, gated_stride, x_stride, slot_stride;
  int max_segments;
  int h_stride;
  int k;
  int num_modules;
  LoraModule modules[kMaxLoraModules];
  Activation activation;
};

__device__ __forceinline__ int load_num_segments(const LoraParams& p) {
  return __ldcg(p.num_segments + (p.gated != nullptr ? 1 : 0));
}

// What lies in which slot, and which rows have it, does not change within a step, and may be read before the
// inputs are there (dependent_launch.cuh). A kernel's first reads wait for each other: each of these functions
// is one of them, however much it reads.
__device__ __forceinline__ LoraSegment load_segment(const LoraParams& p, int index) {
  const auto* from = reinterpret_cast<const int32_t*>(p.segments + index);
  return {__ldcg(from), __ldcg(from + 1), __ldcg(from + 2)};
}

__device__ __forceinline__ LoraSlot load_slot(const LoraParams& p, int slot) {
  static_assert(sizeof(LoraSlot) == 4 * sizeof(int4));
  if (slot < 0) return {};
  const auto* from = reinterpret_cast<const int4*>(p.slots + slot * p.slot_stride);
  union {
    int4 parts[4];
    LoraSlot slot;
  } out = {.parts = {__ldcg(from), __ldcg(from + 1), __ldcg(from + 2), __ldcg(from + 3)}};
  if (out.slot.a == nullptr) out.slot = {};
  return out.slot;
}

__device__ __forceinline__ int total_rank(const LoraSlot& slot) {
  return slot.ranks[0] + slot.ranks[1] + slot.ranks[2] + slot.ranks[3];
}

// Of a batch, the row that is at this place of a segment; -1: it has none there.
__device__ __forceinline__ int load_row(const LoraParams& p, const LoraSegment& segment, int place) {
  return segment.begin + place < segment.end ? __ldcg(p.rows + segment.begin + place) : -1;
}

__device__ __forceinline__ void prefetch_line(const void* p) {
  asm volatile("prefetch.global.L2 [%0];\n" ::"l"(p));
}

}  // namespace quire::cuda
