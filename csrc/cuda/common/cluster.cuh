// Blocks of a cluster: their barrier, and each other's shared memory. For sm_90 and later.
#pragma once

#include "common/tensor_core.cuh"

namespace quire::cuda {

namespace cluster {

__device__ __forceinline__ void arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;\n" ::: "memory");
}

// Of the block of that rank, from where this one has `p` in its shared memory.
__device__ __forceinline__ uint32_t address_of(const void* p, int rank) {
  uint32_t out;
  asm("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(out) : "r"(shared_address(p)), "r"(rank));
  return out;
}
__device__ __forceinline__ float4 load4(uint32_t address) {
  float4 x;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];\n"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(address));
  return x;
}
__device__ __forceinline__ float2 load2(uint32_t address) {
  float2 x;
  asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];\n" : "=f"(x.x), "=f"(x.y) : "r"(address));
  return x;
}
__device__ __forceinline__ unsigned long long load_u64(uint32_t address) {
  unsigned long long x;
  asm volatile("ld.shared::cluster.u64 %0, [%1];\n" : "=l"(x) : "r"(address));
  return x;
}
__device__ __forceinline__ float load(uint32_t address) {
  float x;
  asm volatile("ld.shared::cluster.f32 %0, [%1];\n" : "=f"(x) : "r"(address));
  return x;
}

__device__ __forceinline__ void store(uint32_t address, int x) {
  asm volatile("st.shared::cluster.s32 [%0], %1;\n" ::"r"(address), "r"(x) : "memory");
}

// All threads of the cluster's blocks, or of the block where it is alone.
template <int kBlocks>
__device__ __forceinline__ void meet() {
  if constexpr (kBlocks > 1) {
    arrive();
    wait();
  } else {
    __syncthreads();
  }
}

// Arrives at the mbarrier that the block of that rank has where this one has `barrier`.
// What it wrote is seen there by those who wait for it, where `kReleases`, with wait_barrier below.
template <bool kReleases = false>
__device__ __forceinline__ void arrive_at(uint32_t barrier, int rank) {
  if constexpr (kReleases) {
    asm volatile(
        "{\n"
        ".reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n"
        "}\n" ::"r"(barrier),
        "r"(rank)
        : "memory");
  } else {
    asm volatile(
        "{\n"
        ".reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
        "}\n" ::"r"(barrier),
        "r"(rank)
        : "memory");
  }
}
__device__ __forceinline__ void wait_barrier(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@done bra over;\n"
      "bra again;\n"
      "over:\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

}  // namespace cluster

}  // namespace quire::cuda
