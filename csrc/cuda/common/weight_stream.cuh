// A vector times rows of a weight that is read once.
#pragma once

#include "common/types.cuh"

namespace quire::cuda {

// 16 bytes of a weight, which is read once, and of a row that is read on.
template <typename T>
__device__ __forceinline__ uint4 load_weight(const T* p) {
  uint4 x;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(p));
  return x;
}

// sum + w x, of eight.
template <typename T>
__device__ __forceinline__ float dot(float sum, const uint4& weights, const Vec<T>& x) {
  const auto& w = reinterpret_cast<const Vec<T>&>(weights);
#pragma unroll
  for (int i = 0; i < Vec<T>::kSize; ++i) sum = fmaf(to_float(w.x[i]), to_float(x.x[i]), sum);
  return sum;
}

}  // namespace quire::cuda
