// What tensor cores do not take: fp32, sums that stay in fp32, and inputs that do not lie in vectors.
#pragma once

#include "common/dependent_launch.cuh"
#include "lora/params.cuh"

namespace quire::cuda {

constexpr int kLoraAnyThreads = 256, kLoraAnyWarps = kLoraAnyThreads / 32;

// A block has a segment, a warp one rank of it at a time.
template <typename T>
__global__ void __launch_bounds__(kLoraAnyThreads)
    lora_shrink_any_kernel(const __grid_constant__ LoraParams p) {
  let_next_start();
  wait_for_inputs();
  const int index = static_cast<int>(blockIdx.x);
  if (index >= __ldcg(p.num_segments)) return;
  const LoraSegment segment = load_segment(p, index);
  const LoraSlot* slot = slot_of(p, segment);
  const int4 all = load_ranks(slot);
  const int ranks = all.x + all.y + all.z + all.w;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  for (int rank = static_cast<int>(blockIdx.y) * kLoraAnyWarps + warp; rank < ranks;
       rank += static_cast<int>(gridDim.y) * kLoraAnyWarps) {
    const T* a = static_cast<const T*>(load_pointer(&slot->a)) + static_cast<int64_t>(rank) * p.k;
    for (int i = segment.begin; i < segment.end; ++i) {
      const T* x = static_cast<const T*>(p.x) + __ldcg(p.rows + i) * p.x_stride;
      float sum = 0.0F;
      for (int at = lane; at < p.k; at += 32) sum = fmaf(to_float(a[at]), to_float(x[at]), sum);
      sum = warp_sum(sum);
      if (lane == 0) static_cast<T*>(p.h)[static_cast<int64_t>(i) * p.h_stride + rank] = from_float<T>(sum);
    }
  }
}

// A thread has an output of a segment.
template <typename T, typename Out>
__global__ void __launch_bounds__(kLoraAnyThreads)
    lora_expand_any_kernel(const __grid_constant__ LoraParams p) {
  let_next_start();
  wait_for_inputs();
  const int index = static_cast<int>(blockIdx.x);
  if (index >= __ldcg(p.num_segments)) return;
  const LoraSegment segment = load_segment(p, index);
  const LoraSlot* slot = slot_of(p, segment);
  int64_t output = int64_t{blockIdx.y} * kLoraAnyThreads + threadIdx.x;
  int rank_before = 0, which = 0;
  while (which < p.num_modules && output >= p.modules[which].num_outputs) {
    output -= p.modules[which].num_outputs;
    rank_before += __ldcg(slot->ranks + which++);
  }
  if (which == p.num_modules || __ldcg(slot->ranks + which) == 0) return;
  const int rank = __ldcg(slot->ranks + which);
  const T* b = static_cast<const T*>(load_pointer(slot->b + which)) + output * rank;
  for (int i = segment.begin; i < segment.end; ++i) {
    const T* h = static_cast<const T*>(p.h) + static_cast<int64_t>(i) * p.h_stride + rank_before;
    float sum = 0.0F;
    for (int r = 0; r < rank; ++r) sum = fmaf(to_float(b[r]), to_float(h[r]), sum);
    Out* out =
        static_cast<Out*>(p.out) + __ldcg(p.rows + i) * p.out_stride + p.modules[which].first_output + output;
    *out = from_float<Out>(to_float(*out) + sum);
  }
}

}  // namespace quire::cuda
