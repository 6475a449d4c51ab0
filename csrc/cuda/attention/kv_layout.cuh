// Where keys and values lie in a page of the CUDA backend.
//
// A page is [2: keys, values][KH][S / 16] groups: 16 tokens of one head, one contiguous piece. In a group,
// rows of 16-bit elements whose D is a multiple of 64 lie as [2][D / 64][8][64], and the eight 16-byte chunks
// of each row of 64 are permuted by chunk ^ (token % 8). These are atoms of the 128-byte swizzle of shared
// memory, at one distance along the tokens and another along D, so a plain linear copy of a group, or of
// several that follow each other, is what ldmatrix reads without bank conflicts and what wgmma takes. All
// other rows lie as [16][D].
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire::cuda {

constexpr int kGroupTokens = 16;
constexpr int kAtomTokens = 8, kAtomChunks = 64;  // of the swizzle: 1 KiB

constexpr bool kv_swizzled(int head_size, int element_bytes) {
  return element_bytes == 2 && head_size % 64 == 0;
}

// The index, in 16-byte chunks, of a token's `chunk` in its group; `token` is in [0, 16).
__host__ __device__ constexpr int kv_group_chunk(bool swizzled, int chunks_per_token, int token, int chunk) {
  if (!swizzled) return token * chunks_per_token + chunk;
  return (token / kAtomTokens * (chunks_per_token / 8) + chunk / 8) * kAtomChunks + token % kAtomTokens * 8 +
         ((chunk % 8) ^ (token % 8));
}

// The token, in [0, 16), that owns 16-byte chunk `index` of a group.
__host__ __device__ constexpr int kv_group_token(bool swizzled, int chunks_per_token, int index) {
  return swizzled ? index / (chunks_per_token * kAtomTokens) * kAtomTokens + index % kAtomChunks / 8
                  : index / chunks_per_token;
}

// Bytes from the start of a page to the group of `token` (of the page); `values` is 0 for keys, 1 for values.
__host__ __device__ constexpr int64_t kv_group_offset(int values, int kv_head, int token, int num_kv_heads,
                                                      int block_size, int bytes_per_token) {
  return (static_cast<int64_t>(values * num_kv_heads + kv_head) * block_size +
          token / kGroupTokens * kGroupTokens) *
         bytes_per_token;
}

}  // namespace quire::cuda
