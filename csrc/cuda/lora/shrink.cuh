// h = a x, of up to 16 rows at a time. Operands come from memory in 16 bytes a lane and go to the registers of
// tensor cores that they lie in: an element's place in the depth of a product is anyone's, as long as both
// operands agree.
#pragma once

#include "common/tensor_core.cuh"
#include "lora/params.cuh"

namespace quire::cuda {

constexpr int kLoraThreads = 256, kLoraWarps = kLoraThreads / 32;
constexpr int kShrinkDepth = 32;  // of k, in a step of a warp

// A warp's share of the depth, in steps.
struct ShrinkSteps {
  int begin, end;

  // Worker `i` of `num`.
  __device__ ShrinkSteps(int k, int i, int num) {
    const int steps = (k + kShrinkDepth - 1) / kShrinkDepth, each = (steps + num - 1) / num;
    begin = i * each < steps ? i * each : steps;
    end = begin + each < steps ? begin + each : steps;
  }
};

__device__ __forceinline__ uint4 load_streamed(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

// Of `a`, what a lane has of a step and 8 * kTiles ranks from `first` on.
template <typename T, int kTiles>
__device__ __forceinline__ void load_a(uint4 (&to)[kTiles], const void* a, int k, int first, int ranks,
                                       int step, int end) {
  const int lane = static_cast<int>(threadIdx.x) % 32, row = first + lane / 4;
  const int at = step * kShrinkDepth + lane % 4 * 8;
  const T* from = static_cast<const T*>(a) + static_cast<int64_t>(row) * k + at;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    to[i] = step < end && at < k && row + 8 * i < ranks ? load_streamed(from + static_cast<int64_t>(8 * i) * k)
                                                        : uint4{};
  }
}

// Of rows lane / 4 and eight more, null where there is none.
template <typename T>
__device__ __forceinline__ void load_x(uint4 (&to)[2], const T* const* rows, int k, int step, int end) {
  const int at = step * kShrinkDepth + static_cast<int>(threadIdx.x) % 4 * 8;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    to[i] = step < end && at < k && rows[i] != nullptr ? *reinterpret_cast<const uint4*>(rows[i] + at)
                                                       : uint4{};
  }
}

template <typename T, int kTiles>
__device__ __forceinline__ void shrink_step(float (&sums)[kTiles][4], const uint4 (&a)[kTiles],
                                            const uint4 (&x)[2]) {
  const uint32_t low[4] = {x[0].x, x[1].x, x[0].y, x[1].y};
  const uint32_t high[4] = {x[0].z, x[1].z, x[0].w, x[1].w};
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    multiply_add<T>(sums[i], low, a[i].x, a[i].y);
    multiply_add<T>(sums[i], high, a[i].z, a[i].w);
  }
}

// Calls f(row, rank, sum of rank, sum of the next) for what a lane has of those sums.
template <int kTiles, typename F>
__device__ __forceinline__ void for_each_sum(const float (&sums)[kTiles][4], const F& f) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      f(lane / 4 + 8 * half, 8 * i + lane % 4 * 2, sums[i][2 * half], sums[i][2 * half + 1]);
  }
}

}  // namespace quire::cuda
