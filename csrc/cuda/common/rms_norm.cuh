// The arithmetic of RMSNorm, the same wherever it is fused: results agree bitwise.
#pragma once

#include "common/types.cuh"

namespace quire::cuda {

// V: elements x[] of T.
template <typename V>
__device__ __forceinline__ float squares(const V& v, float sum) {
#pragma unroll
  for (const auto& x : v.x) sum = fmaf(to_float(x), to_float(x), sum);
  return sum;
}

template <typename V>
__device__ __forceinline__ V scaled(const V& v, const V& weight, float scale, float offset) {
  V out;
#pragma unroll
  for (int j = 0; j < static_cast<int>(sizeof v.x / sizeof v.x[0]); ++j) {
    using T = std::remove_cvref_t<decltype(v.x[j])>;
    out.x[j] = from_float<T>(__fmul_rn(to_float(v.x[j]), scale) * (offset + to_float(weight.x[j])));
  }
  return out;
}

// Within 2 units in the last place. The division does not wait for the sum; one behind it and a square root
// would take longer than all else that a short row's norm computes.
__device__ __forceinline__ float inverse_rms(float sum, int n, float eps) {
  return rsqrtf(fmaf(sum, 1.0F / static_cast<float>(n), eps));
}

}  // namespace quire::cuda
