// The order of a row's logits, and ways to cut a row there: what sampling and log-probabilities share.
//
// A logit and its id make one 64-bit number, so that the likelier is the larger, and of equals that with the
// lower id. NaN counts as minus infinity. Sums are of integers: any order of additions gives the same.
#pragma once

#include <cstdint>

namespace quire::cuda {

using Ranked = unsigned long long;

__device__ __forceinline__ uint32_t order_key(float x) {
  x = x == x ? x + 0.0F : -INFINITY;  // -0 and 0 are equals
  const uint32_t bits = __float_as_uint(x);
  return bits & 0x80000000U ? ~bits : bits | 0x80000000U;
}
__device__ __forceinline__ Ranked ranked(float x, uint32_t id) { return Ranked{order_key(x)} << 32 | (~id); }
__device__ __forceinline__ uint32_t id_of(Ranked r) { return ~static_cast<uint32_t>(r); }
__device__ __forceinline__ float logit_of(Ranked r) {
  const uint32_t key = static_cast<uint32_t>(r >> 32);
  return __uint_as_float(key & 0x80000000U ? key ^ 0x80000000U : ~key);
}

__device__ __forceinline__ Ranked warp_max(Ranked x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x = max(x, __shfl_xor_sync(0xFFFFFFFFU, x, offset));
  return x;
}
__device__ __forceinline__ Ranked warp_sum(Ranked x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xFFFFFFFFU, x, offset);
  return x;
}

// Over all threads of a block of whole warps, on every thread. `shared` has room for 32.
template <bool kMax>
__device__ __forceinline__ Ranked block_reduce(Ranked x, Ranked* shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  x = kMax ? warp_max(x) : warp_sum(x);
  __syncthreads();  // earlier readers of `shared`
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  x = lane < blockDim.x / 32 ? shared[lane] : 0;
  return kMax ? warp_max(x) : warp_sum(x);
}

// Calls f(id, four logits) for ids [begin, end) in groups of four, spread over the block; beyond the end they
// are minus infinity. begin is a multiple of four.
template <typename F>
__device__ __forceinline__ void for_each_four(const float* row, int begin, int end, F f) {
  constexpr int kUnroll = 4;  // loads in flight
  const bool aligned = reinterpret_cast<uintptr_t>(row) % 16 == 0;
  const int step = 4 * static_cast<int>(blockDim.x);
  for (int base = begin + 4 * static_cast<int>(threadIdx.x); base < end; base += kUnroll * step) {
    float4 v[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int i = base + u * step;
      if (aligned && i + 4 <= end) {
        v[u] = *reinterpret_cast<const float4*>(row + i);
      } else {
        v[u].x = i < end ? row[i] : -INFINITY;
        v[u].y = i + 1 < end ? row[i + 1] : -INFINITY;
        v[u].z = i + 2 < end ? row[i + 2] : -INFINITY;
        v[u].w = i + 3 < end ? row[i + 3] : -INFINITY;
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (base + u * step < end) f(base + u * step, v[u]);
  }
}
template <typename F>
__device__ __forceinline__ void for_each_logit(const float* row, int begin, int end, F f) {
  for_each_four(row, begin, end, [&](int i, float4 v) {
    f(i, v.x);
    if (i + 1 < end) f(i + 1, v.y);
    if (i + 2 < end) f(i + 2, v.z);
    if (i + 3 < end) f(i + 3, v.w);
  });
}

// ---- bins -----------------------------------------------------------------------------------------
// Tokens by how far they lie below the likeliest, in units of 1/32 of a natural logarithm; the last bin has
// no end. Counting them tells how far down one has to look.

constexpr int kBins = 1024;
constexpr float kBinsPerUnit = 32.0F;

// `distance` from the maximum, at least 0, or NaN.
__device__ __forceinline__ int bin_of(float distance) {
  return distance * kBinsPerUnit < kBins - 1 ? static_cast<int>(distance * kBinsPerUnit) : kBins - 1;
}

// Inclusive sums over the lanes of a warp.
template <typename T>
__device__ __forceinline__ T sum_upto_lane(T x) {
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const T other = __shfl_up_sync(0xFFFFFFFFU, x, offset);
    if (threadIdx.x % 32 >= offset) x += other;
  }
  return x;
}

// The first i of 1024 at which the sum of value(0 .. i) reaches a goal, tested by `reached`; 1023 if none
// does. One warp, on every lane: groups of 32 first, then one group.
template <typename T, typename Value, typename Reached>
__device__ __forceinline__ int first_reaching(const Value& value, const Reached& reached) {
  const int lane = threadIdx.x % 32;
  T group_sum = 0;
  for (int j = 0; j < 32; ++j)
    group_sum += value(32 * lane + (j + lane) % 32);  // every lane a bank of its own
  const T upto = sum_upto_lane(group_sum);
  const uint32_t groups = __ballot_sync(0xFFFFFFFFU, reached(upto));
  if (groups == 0) return kBins - 1;
  const int group = __ffs(groups) - 1;
  T before = __shfl_sync(0xFFFFFFFFU, upto, max(group - 1, 0));
  if (group == 0) before = 0;
  const T within = sum_upto_lane(value(32 * group + lane));
  const uint32_t found = __ballot_sync(0xFFFFFFFFU, reached(before + within));
  // Floats may add up differently here than above: then it is the group's last.
  return 32 * group + (found != 0 ? __ffs(found) - 1 : 31);
}

// The first bin up to which there are at least `count` tokens; the last bin's are taken as none. One warp,
// `bins` in shared memory.
__device__ __forceinline__ int bin_of_count(const uint32_t* bins, uint32_t count) {
  return first_reaching<uint32_t>([&](int i) { return i < kBins - 1 ? bins[i] : 0; },
                                  [&](uint32_t upto) { return upto >= count; });
}
// How many tokens lie in bins [0, last].
__device__ __forceinline__ uint32_t count_upto(const uint32_t* bins, int last) {
  Ranked sum = 0;
  for (int i = threadIdx.x % 32; i <= last; i += 32) sum += bins[i];
  return static_cast<uint32_t>(warp_sum(sum));
}

// ---- a list ---------------------------------------------------------------------------------------

// Sorts a power of two of shared elements, largest first. All threads of the block.
__device__ __forceinline__ void block_sort(Ranked* list, int n) {
  for (int size = 2; size <= n; size *= 2) {
    for (int stride = size / 2; stride > 0; stride /= 2) {
      __syncthreads();
      for (int pair = threadIdx.x; pair < n / 2; pair += blockDim.x) {
        const int low = 2 * pair - pair % stride, high = low + stride;
        const bool descending = (low & size) == 0;
        const Ranked a = list[low], b = list[high];
        if ((a < b) == descending) {
          list[low] = b;
          list[high] = a;
        }
      }
    }
  }
  __syncthreads();
}

}  // namespace quire::cuda
