// What kernels of tensor-core attention share, on sm_80 and later.
#pragma once

#include "attention/kv_layout.cuh"
#include "common/tensor_core.cuh"

namespace quire::cuda {

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

// Over the eight lanes that hold one column of an accumulator.
__device__ __forceinline__ float rows_max(float x) {
#pragma unroll
  for (int mask = 4; mask < 32; mask *= 2) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFU, x, mask));
  return x;
}
__device__ __forceinline__ float rows_sum(float x) {
#pragma unroll
  for (int mask = 4; mask < 32; mask *= 2) x += __shfl_xor_sync(0xFFFFFFFFU, x, mask);
  return x;
}

// A group (16 tokens of one head) in shared memory, as it lies in its page.
template <int D>
struct Group {
  static constexpr int kAtomShift = kv_atom_shift(D, 2);
  static constexpr int kChunksPerToken = D / 8;
  static constexpr int kChunks = kGroupTokens * kChunksPerToken;
  static constexpr int kBytes = kChunks * 16;

  // Byte offset of a token's chunk.
  static __device__ __forceinline__ int offset(int token, int chunk) {
    return 16 * kv_group_chunk(kAtomShift, kChunksPerToken, token, chunk);
  }
  // The token that chunk `index` belongs to.
  static __device__ __forceinline__ int token_of(int index) {
    return kv_group_token(kAtomShift, kChunksPerToken, index);
  }

  // Operand B of Q K^T: for 16 elements of D, registers 0 and 1 are tokens 0 to 7, 2 and 3 the others.
  static __device__ __forceinline__ void load_keys(uint32_t (&b)[4], uint32_t group, int k16, int lane) {
    load_matrices(b, group + offset(lane / 16 * 8 + lane % 8, 2 * k16 + lane / 8 % 2));
  }
  // Operand B of P V: for 16 elements of D, registers 0 and 1 are the first 8 of them, 2 and 3 the others.
  static __device__ __forceinline__ void load_values(uint32_t (&b)[4], uint32_t group, int n16, int lane) {
    load_matrices_transposed(b, group + offset(lane / 8 % 2 * 8 + lane % 8, 2 * n16 + lane / 16));
  }
  // The same as operand A: of K Q^T, 16 keys as rows, and of V^T P^T, 16 columns of V as rows.
  static __device__ __forceinline__ void load_keys_as_rows(uint32_t (&a)[4], uint32_t group, int k16,
                                                           int lane) {
    load_keys(a, group, k16, lane);
    exchange(a[1], a[2]);
  }
  static __device__ __forceinline__ void load_values_as_rows(uint32_t (&a)[4], uint32_t group, int n16,
                                                             int lane) {
    load_values(a, group, n16, lane);
    exchange(a[1], a[2]);
  }

 private:
  static __device__ __forceinline__ void exchange(uint32_t& x, uint32_t& y) {
    const uint32_t old = x;
    x = y, y = old;
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
