// Hopper's asynchronous instructions: wgmma, bulk copies, mbarriers. For sm_90a only.
#pragma once

#include <cstdint>

#include "common/tensor_core.cuh"

namespace quire::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// ---- mbarriers: 8 bytes of shared memory, by address ------------------------------------------------
__device__ __forceinline__ void init_barrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Those that this thread has initialised are seen by the cluster's other blocks after they have met.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}
__device__ __forceinline__ void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}
// Arrives, and makes the phase wait for that many bytes of bulk copies.
__device__ __forceinline__ void arrive_expecting(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Until the phase of that parity is over.
__device__ __forceinline__ void wait_barrier(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra over;\n"
      "bra again;\n"
      "over:\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// `bytes` (a multiple of 16) from global to shared memory; completes on the barrier.
__device__ __forceinline__ void copy_bulk(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
// The same with a policy of the L2 cache (weight_stream.cuh).
__device__ __forceinline__ void copy_bulk(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier,
                                          uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
      "[%3], %4;\n" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}
// The same to the blocks of a cluster whose bit is set in `blocks`, each at the same places of its own
// memory.
__device__ __forceinline__ void copy_bulk_to(uint16_t blocks, uint32_t to, const void* from, uint32_t bytes,
                                             uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, "
      "[%3], %4;\n" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "h"(blocks)
      : "memory");
}
// A box of a tensor, at those coordinates, to shared memory; completes on the barrier. `map` is a parameter
// of the kernel.
__device__ __forceinline__ void copy_tensor(uint32_t to, const void* map, int column, int row, int matrix,
                                            uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
      "[%5];\n" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(matrix), "r"(barrier)
      : "memory");
}
// The same with a policy of the L2 cache.
__device__ __forceinline__ void copy_tensor(uint32_t to, const void* map, int column, int row, int matrix,
                                            uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, "
      "{%2, %3, %4}], [%5], %6;\n" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(matrix), "r"(barrier), "l"(policy)
      : "memory");
}
// The same to the blocks of a cluster whose bit is set in `blocks`, each at the same places of its own
// memory.
__device__ __forceinline__ void copy_tensor_to(uint16_t blocks, uint32_t to, const void* map, int column,
                                               int row, int matrix, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%2, %3, %4}], [%5], %6;\n" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(matrix), "r"(barrier), "h"(blocks)
      : "memory");
}
// A box of a tensor from shared memory, but for what is outside of the tensor. What this thread has committed
// is read out of shared memory after wait_for_stores().
__device__ __forceinline__ void store_tensor(const void* map, int column, int row, int matrix,
                                             uint32_t from) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];\n" ::"l"(map),
               "r"(column), "r"(row), "r"(matrix), "r"(from)
               : "memory");
}
__device__ __forceinline__ void commit_stores() {
  asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
}
__device__ __forceinline__ void wait_for_stores() {
  asm volatile("cp.async.bulk.wait_group.read 0;\n" ::: "memory");
}
// Before a map is used first.
__device__ __forceinline__ void prefetch_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(map) : "memory");
}
// Ordinary writes to shared memory before this are seen by wgmma after the next barrier.
__device__ __forceinline__ void fence_for_async() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

// Four 8 x 8 matrices of 16-bit elements to shared memory, from the layout of accumulators: lane i has the
// address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void store_matrices(uint32_t to, const uint32_t (&matrices)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(to),
               "r"(matrices[0]), "r"(matrices[1]), "r"(matrices[2]), "r"(matrices[3])
               : "memory");
}

// ---- threads and registers --------------------------------------------------------------------------
// True for one thread of a warp, all of which come here. The compiler knows that it is one.
__device__ __forceinline__ bool is_elected() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred one;\n"
      "elect.sync _|one, 0xFFFFFFFF;\n"
      "selp.u32 %0, 1, 0, one;\n"
      "}\n"
      : "=r"(elected));
  return elected != 0;
}
// An address of shared memory that is kept: the compiler would find out anew where that begins, at each use.
__device__ __forceinline__ uint32_t in_register(uint32_t address) {
  asm volatile("" : "+r"(address));
  return address;
}

// ---- a ring of stages: producer and consumers count for themselves ------------------------------------
template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// ---- named barriers -----------------------------------------------------------------------------------
template <int kThreads>
__device__ __forceinline__ void sync_threads(int id) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(id), "n"(kThreads) : "memory");
}
template <int kThreads>
__device__ __forceinline__ void arrive_threads(int id) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(id), "n"(kThreads) : "memory");
}

// ---- wgmma ------------------------------------------------------------------------------------------
// Describes a matrix in shared memory with a swizzle of 128, 64 or 32 bytes: rows of so many, eight to an
// atom, which begins at a multiple of its size. `stride` is the distance in bytes between atoms along the
// rows (8 rows apart); `leading` that between atoms along the rows' bytes, which matters only where the
// matrix is wider than that and transposed.
template <int kSwizzleBytes = 128>
__device__ __forceinline__ uint64_t matrix_descriptor(uint32_t address, uint32_t leading, uint32_t stride) {
  static_assert(kSwizzleBytes == 128 || kSwizzleBytes == 64 || kSwizzleBytes == 32);
  constexpr uint64_t kSwizzle = kSwizzleBytes == 128 ? 1 : kSwizzleBytes == 64 ? 2 : 3;
  return static_cast<uint64_t>((address & 0x3FFFFU) >> 4) | static_cast<uint64_t>(leading >> 4) << 16 |
         static_cast<uint64_t>(stride >> 4) << 32 | kSwizzle << 62;
}
// The same of a matrix without a swizzle, in pieces of 8 x 8 16-bit elements: 128 bytes in a row, eight
// elements after eight. `leading` is the distance in bytes between pieces along the sum, `stride` that
// between pieces along the rows.
__device__ __forceinline__ uint64_t plain_descriptor(uint32_t address, uint32_t leading, uint32_t stride) {
  return static_cast<uint64_t>((address & 0x3FFFFU) >> 4) | static_cast<uint64_t>(leading >> 4) << 16 |
         static_cast<uint64_t>(stride >> 4) << 32;
}
// The descriptor of a matrix that lies `bytes` further on.
__device__ __forceinline__ uint64_t advanced(uint64_t descriptor, uint32_t bytes) {
  return descriptor + (bytes >> 4);
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving uses of accumulators across.
template <int N>
__device__ __forceinline__ void hold(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// An accumulator's registers, in the instruction's text and among its operands.
#define QUIRE_R4 "%0, %1, %2, %3"
#define QUIRE_R8 QUIRE_R4 ", %4, %5, %6, %7"
#define QUIRE_R16 QUIRE_R8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define QUIRE_R32 \
  QUIRE_R16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define QUIRE_R40 QUIRE_R32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define QUIRE_R48 QUIRE_R40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define QUIRE_R64 \
  QUIRE_R48       \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define QUIRE_R96                                                                                   \
  QUIRE_R64                                                                                         \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82" \
  ", %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define QUIRE_R112 \
  QUIRE_R96        \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define QUIRE_R128 \
  QUIRE_R112       \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define QUIRE_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define QUIRE_D8(i) QUIRE_D4(i), QUIRE_D4(i + 4)
#define QUIRE_D16(i) QUIRE_D8(i), QUIRE_D8(i + 8)
#define QUIRE_D32(i) QUIRE_D8(i), QUIRE_D8(i + 8), QUIRE_D8(i + 16), QUIRE_D8(i + 24)
#define QUIRE_D40 QUIRE_D32(0), QUIRE_D8(32)
#define QUIRE_D48 QUIRE_D32(0), QUIRE_D16(32)
#define QUIRE_D64 QUIRE_D48, QUIRE_D16(48)
#define QUIRE_D96 QUIRE_D64, QUIRE_D32(64)
#define QUIRE_D112 QUIRE_D96, QUIRE_D16(96)
#define QUIRE_D128 QUIRE_D112, QUIRE_D16(112)
// `shape` and `type` are the instruction's, `accumulates` the operand that says whether d is added to.
#define QUIRE_WGMMA(shape, type, accumulates, registers, operands) \
  "{\n.reg .pred p;\nsetp.ne.b32 p, " accumulates                  \
  ", 0;\n"                                                         \
  "wgmma.mma_async.sync.aligned." shape ".f32." type "." type      \
  " "                                                              \
  "{" registers "}, " operands ";\n}\n"

// d (+)= a b^T, both in shared memory with rows along the sum: 64 x 16 times 16 x 2 kRegisters.
template <typename T, int kRegisters>
__device__ __forceinline__ void wgmma_rows(float (&d)[kRegisters], uint64_t a, uint64_t b, int accumulate) {
#define QUIRE_ROWS(shape, type, accumulates, registers, operands, ...)                      \
  asm volatile(QUIRE_WGMMA(shape, type, accumulates, registers, operands ", p, 1, 1, 0, 0") \
               : __VA_ARGS__                                                                \
               : "l"(a), "l"(b), "r"(accumulate))
#define QUIRE_ROWS_OF(type)                                                       \
  if constexpr (kRegisters == 4) {                                                \
    QUIRE_ROWS("m64n8k16", type, "%6", QUIRE_R4, "%4, %5", QUIRE_D4(0));          \
  } else if constexpr (kRegisters == 8) {                                         \
    QUIRE_ROWS("m64n16k16", type, "%10", QUIRE_R8, "%8, %9", QUIRE_D8(0));        \
  } else if constexpr (kRegisters == 16) {                                        \
    QUIRE_ROWS("m64n32k16", type, "%18", QUIRE_R16, "%16, %17", QUIRE_D16(0));    \
  } else if constexpr (kRegisters == 32) {                                        \
    QUIRE_ROWS("m64n64k16", type, "%34", QUIRE_R32, "%32, %33", QUIRE_D32(0));    \
  } else if constexpr (kRegisters == 48) {                                        \
    QUIRE_ROWS("m64n96k16", type, "%50", QUIRE_R48, "%48, %49", QUIRE_D48);       \
  } else if constexpr (kRegisters == 64) {                                        \
    QUIRE_ROWS("m64n128k16", type, "%66", QUIRE_R64, "%64, %65", QUIRE_D64);      \
  } else if constexpr (kRegisters == 96) {                                        \
    QUIRE_ROWS("m64n192k16", type, "%98", QUIRE_R96, "%96, %97", QUIRE_D96);      \
  } else if constexpr (kRegisters == 112) {                                       \
    QUIRE_ROWS("m64n224k16", type, "%114", QUIRE_R112, "%112, %113", QUIRE_D112); \
  } else {                                                                        \
    static_assert(kRegisters == 128);                                             \
    QUIRE_ROWS("m64n256k16", type, "%130", QUIRE_R128, "%128, %129", QUIRE_D128); \
  }
  if constexpr (std::is_same_v<T, bf16>) {
    QUIRE_ROWS_OF("bf16")
  } else {
    QUIRE_ROWS_OF("f16")
  }
#undef QUIRE_ROWS_OF
#undef QUIRE_ROWS
}

// d (+)= a b: a in registers, b in shared memory, 16 x 2 kRegisters; its rows are across the sum, or, where
// not `kAcross`, along it.
template <typename T, bool kAcross, int kRegisters>
__device__ __forceinline__ void wgmma_registers(float (&d)[kRegisters], const uint32_t (&a)[4], uint64_t b,
                                                int accumulate) {
#define QUIRE_REGISTERS(shape, type, accumulates, across, registers, operands, ...)            \
  asm volatile(QUIRE_WGMMA(shape, type, accumulates, registers, operands ", p, 1, 1, " across) \
               : __VA_ARGS__                                                                   \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(kAcross))
#define QUIRE_REGISTERS_OF(type)                                                                            \
  if constexpr (kRegisters == 32) {                                                                         \
    QUIRE_REGISTERS("m64n64k16", type, "%37", "%38", QUIRE_R32, "{%32, %33, %34, %35}, %36", QUIRE_D32(0)); \
  } else if constexpr (kRegisters == 40) {                                                                  \
    QUIRE_REGISTERS("m64n80k16", type, "%45", "%46", QUIRE_R40, "{%40, %41, %42, %43}, %44", QUIRE_D40);    \
  } else if constexpr (kRegisters == 48) {                                                                  \
    QUIRE_REGISTERS("m64n96k16", type, "%53", "%54", QUIRE_R48, "{%48, %49, %50, %51}, %52", QUIRE_D48);    \
  } else {                                                                                                  \
    static_assert(kRegisters == 64);                                                                        \
    QUIRE_REGISTERS("m64n128k16", type, "%69", "%70", QUIRE_R64, "{%64, %65, %66, %67}, %68", QUIRE_D64);   \
  }
  if constexpr (std::is_same_v<T, bf16>) {
    QUIRE_REGISTERS_OF("bf16")
  } else {
    QUIRE_REGISTERS_OF("f16")
  }
#undef QUIRE_REGISTERS_OF
#undef QUIRE_REGISTERS
}

#undef QUIRE_WGMMA
#undef QUIRE_D128
#undef QUIRE_D112
#undef QUIRE_D96
#undef QUIRE_D64
#undef QUIRE_D48
#undef QUIRE_D40
#undef QUIRE_D32
#undef QUIRE_D16
#undef QUIRE_D8
#undef QUIRE_D4
#undef QUIRE_R128
#undef QUIRE_R112
#undef QUIRE_R96
#undef QUIRE_R64
#undef QUIRE_R48
#undef QUIRE_R40
#undef QUIRE_R32
#undef QUIRE_R16
#undef QUIRE_R8
#undef QUIRE_R4

#endif

}  // namespace quire::cuda
