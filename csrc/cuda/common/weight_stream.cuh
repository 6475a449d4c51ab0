// Weights that are read once, and the kernels that wait for them.
#pragma once

#include "common/dependent_launch.cuh"
#include "common/types.cuh"

namespace quire::cuda {

// For the L2 cache, of what is read once a step: it is the first to leave it, so that rows, plans and the
// kernels themselves stay.
__device__ __forceinline__ uint64_t read_once_policy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;\n" : "=l"(policy));
  return policy;
}

// 16 bytes of a weight, which is read once, and of a row that is read on.
template <typename T>
__device__ __forceinline__ uint4 load_weight(const T* p) {
  uint4 x;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4], %5;\n"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(p), "l"(read_once_policy()));
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

// Of rows that have it (rows.cuh).
template <typename Rows>
__device__ __forceinline__ void complete(const Rows& rows, const typename Rows::Shared& shared, int output,
                                         typename Rows::Constants& constants) {
  if constexpr (requires { rows.complete(shared, output, constants); })
    rows.complete(shared, output, constants);
}

// launch_dependent, with what it takes of the L1 cache. `most_shared_bytes`: of all launches of the kernel.
template <auto kKernel, typename... Args>
void launch_weight_stream(const LaunchContext& ctx, dim3 grid, unsigned threads, size_t shared_bytes,
                          size_t most_shared_bytes, Args&&... args) {
  static std::atomic<uint64_t> prepared{0};
  keep_l1_cache(prepared, reinterpret_cast<const void*>(kKernel), threads, most_shared_bytes);
  launch_dependent(ctx, kKernel, grid, threads, shared_bytes, std::forward<Args>(args)...);
}

}  // namespace quire::cuda
