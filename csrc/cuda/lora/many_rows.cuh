// Many rows: h goes through memory. What these kernels read and write besides is the inputs once and the
// outputs once, which is nearly all of their time.
#pragma once

#include "common/dependent_launch.cuh"
#include "lora/tiles.cuh"

namespace quire::cuda {

// A block has a segment.
template <typename T>
__global__ void __launch_bounds__(kLoraThreads) lora_shrink_kernel(const __grid_constant__ LoraParams p) {
  extern __shared__ __align__(16) std::byte shared[];
  let_next_start();
  const int index = static_cast<int>(blockIdx.x);
  wait_for_inputs();
  if (index >= __ldcg(p.num_segments)) return;
  const LoraShare share(p, index);
  T* h = static_cast<T*>(p.h) + static_cast<int64_t>(share.segment.begin) * p.h_stride;
  shrink<T>(p, share, 0, 1, reinterpret_cast<float*>(shared), [&](int row, int rank, float sum) {
    h[static_cast<int64_t>(row) * p.h_stride + rank] = from_float<T>(sum);
  });
}

// Segments that a block has one after the other, mostly of the same adapter: it reads `b` from its L1 cache.
constexpr int kExpandSegments = 4;

// A warp has a unit of outputs.
template <typename T>
__global__ void __launch_bounds__(kLoraThreads) lora_expand_kernel(const __grid_constant__ LoraParams p) {
  let_next_start();
  const int unit = static_cast<int>(blockIdx.x) * kLoraWarps + static_cast<int>(threadIdx.x) / 32;
  const int units = expand_units(p);
  wait_for_inputs();
  const int first = static_cast<int>(blockIdx.y) * kExpandSegments;
  const int left = __ldcg(p.num_segments) - first, count = left < kExpandSegments ? left : kExpandSegments;
  if (unit >= units) return;
  for (int i = 0; i < count; ++i) {
    const LoraShare share(p, first + i);
    const ExpandUnit<T> expanded(p, share, unit);
    ExpandHead<T> head(p, share, expanded);
    const T* h = static_cast<const T*>(p.h) + static_cast<int64_t>(share.segment.begin) * p.h_stride;
    expand<T>(expanded, head, h, p.h_stride, share.num_rows(),
              [](const T* from) { return *reinterpret_cast<const uint2*>(from); });
  }
}

}  // namespace quire::cuda
