// Element types on the device: conversions, vectors of 16 bytes, sums over a warp and a block.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "quire/kernels/tensor_view.h"

namespace quire::cuda {

using bf16 = __nv_bfloat16;
using fp16 = __half;

template <typename T>
__device__ __forceinline__ float to_float(T x) {
  if constexpr (sizeof(T) == 4) {
    return x;
  } else if constexpr (std::is_same_v<T, bf16>) {
    return __bfloat162float(x);
  } else {
    return __half2float(x);
  }
}

// Rounds to nearest even.
template <typename T>
__device__ __forceinline__ T from_float(float x) {
  if constexpr (sizeof(T) == 4) {
    return x;
  } else if constexpr (std::is_same_v<T, bf16>) {
    return __float2bfloat16_rn(x);
  } else {
    return __float2half_rn(x);
  }
}

// 16 bytes of T, loaded and stored at once.
template <typename T>
struct alignas(16) Vec {
  static constexpr int kSize = 16 / sizeof(T);
  T x[kSize];

  static __device__ __forceinline__ Vec load(const T* p) { return *reinterpret_cast<const Vec*>(p); }
  __device__ __forceinline__ void store(T* p) const { *reinterpret_cast<Vec*>(p) = *this; }
};

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xFFFFFFFFU, x, offset);
  return x;
}
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFU, x, offset));
  return x;
}

// The sum over all threads of the block, on every thread. `shared` has room for 33 floats; the order of the
// additions is fixed by the block's size.
__device__ __forceinline__ float block_sum(float x, float* shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  x = warp_sum(x);
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  if (warp == 0) {
    const float partial = lane < (blockDim.x + 31) / 32 ? shared[lane] : 0.0F;
    const float total = warp_sum(partial);
    if (lane == 0) shared[32] = total;
  }
  __syncthreads();
  const float total = shared[32];
  __syncthreads();  // `shared` may be used again
  return total;
}

// The same of the largest.
__device__ __forceinline__ float block_max(float x, float* shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  x = warp_max(x);
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  const int warps = (blockDim.x + 31) / 32;
  const float most = warp_max(shared[lane < warps ? lane : 0]);
  __syncthreads();  // `shared` may be used again
  return most;
}

// Calls f with a value of the C++ type of a float dtype.
template <typename F>
void dispatch_float(DType dtype, F f) {
  switch (dtype) {
    case DType::kFloat32: return f(float{});
    case DType::kFloat16: return f(fp16{});
    default: return f(bf16{});
  }
}

}  // namespace quire::cuda
