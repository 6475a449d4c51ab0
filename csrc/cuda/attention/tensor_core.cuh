// The instructions of tensor-core attention that sm_80 and later have, as functions.
#pragma once

#include <cstdint>
#include <type_traits>

#include "attention/kv_layout.cuh"
#include "common/types.cuh"

namespace quire::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// 16 bytes from global to shared memory, or 16 zeros when not `valid`; then `source` is not read, but must be
// a legal address.
__device__ __forceinline__ void copy_async(uint32_t to, const void* source, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(source), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// d += a b: 16 x 16 times 16 x 8.
template <typename T>
__device__ __forceinline__ void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
  if constexpr (std::is_same_v<T, bf16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// Two floats as two T, `low` in the lower half.
template <typename T>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  if constexpr (std::is_same_v<T, bf16>) {
    const __nv_bfloat162 x = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(x);
  } else {
    const __half2 x = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t&>(x);
  }
}

// 2^x; 0 for -inf.
__device__ __forceinline__ float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

constexpr float kLog2E = 1.4426950408889634F;
constexpr float kNegativeInfinity = -__builtin_huge_valf();

// Over the four lanes that hold one row of an accumulator.
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFU, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xFFFFFFFFU, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xFFFFFFFFU, x, 1);
  return x + __shfl_xor_sync(0xFFFFFFFFU, x, 2);
}

// A group (16 tokens of one head) in shared memory: as it lies in its page where that is swizzled, otherwise
// with rows an odd number of 16-byte chunks apart, so that eight of them touch every bank once.
template <int D>
struct Group {
  static constexpr bool kSwizzled = kv_swizzled(D, 2);
  static constexpr int kChunksPerToken = D / 8;
  static constexpr int kChunks = kGroupTokens * kChunksPerToken;
  static constexpr int kRowChunks = kSwizzled ? kChunksPerToken : (kChunksPerToken | 1);
  static constexpr int kBytes = kGroupTokens * kRowChunks * 16;

  // Byte offset of a token's chunk.
  static __device__ __forceinline__ int offset(int token, int chunk) {
    return 16 *
           (kSwizzled ? kv_group_chunk(true, kChunksPerToken, token, chunk) : token * kRowChunks + chunk);
  }
  // Byte offset of chunk `index` of the group as it lies in its page, and the token it belongs to.
  static __device__ __forceinline__ int stored_offset(int index) {
    return 16 * (kSwizzled ? index : index / kChunksPerToken * kRowChunks + index % kChunksPerToken);
  }
  static __device__ __forceinline__ int token_of(int index) {
    return kv_group_token(kSwizzled, kChunksPerToken, index);
  }

  // Operand B of Q K^T: for 16 elements of D, registers 0 and 1 are tokens 0 to 7, 2 and 3 the others.
  static __device__ __forceinline__ void load_keys(uint32_t (&b)[4], uint32_t group, int k16, int lane) {
    load_matrices(b, group + offset(lane / 16 * 8 + lane % 8, 2 * k16 + lane / 8 % 2));
  }
  // Operand B of P V: for 16 elements of D, registers 0 and 1 are the first 8 of them, 2 and 3 the others.
  static __device__ __forceinline__ void load_values(uint32_t (&b)[4], uint32_t group, int n16, int lane) {
    load_matrices_transposed(b, group + offset(lane / 8 % 2 * 8 + lane % 8, 2 * n16 + lane / 16));
  }
};

// A score in units of log2, after the options that only some models have.
template <bool kOptions>
__device__ __forceinline__ float scaled_score(float dot, float scale, float soft_cap, float slope,
                                              int distance) {
  if constexpr (!kOptions) return dot * scale;  // scale has log2(e) in it
  float score = dot * scale;
  if (soft_cap > 0.0F) score = soft_cap * tanhf(score / soft_cap);
  return (score + slope * static_cast<float>(distance)) * kLog2E;
}

}  // namespace quire::cuda
