// Where keys and values lie in a page of the CUDA backend.
//
// A page is [2: keys, values][KH][S / 16] groups: 16 tokens of one head, one contiguous piece. In a group,
// rows of 16-bit elements lie as [2][D / W][8][W], W the largest of 64, 32 and 16 that divides D, and the
// 16-byte chunks of each row of W are permuted: of 64 by chunk ^ (token % 8), of 32 by chunk ^ (token % 8 /
// 2), of 16 by chunk ^ (token % 8 / 4). These are atoms of the 128, 64 and 32-byte swizzles of shared memory,
// at one distance along the tokens and another along D, so a plain linear copy of a group, or of several that
// follow each other, is what ldmatrix reads without bank conflicts and what wgmma takes. All other rows lie
// as [16][D].
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire::cuda {

constexpr int kGroupTokens = 16;
constexpr int kAtomTokens = 8;

// The 16-byte chunks of an atom's row are 2 to the power of it; -1: there are no atoms.
__host__ __device__ constexpr int kv_atom_shift(int head_size, int element_bytes) {
  if (element_bytes != 2 || head_size % 16 != 0) return -1;
  return head_size % 64 == 0 ? 3 : head_size % 32 == 0 ? 2 : 1;
}

// Where a chunk of an atom's row lies in it. `row` counts from any atom's first.
__host__ __device__ constexpr int kv_atom_chunk(int atom_shift, int row, int chunk) {
  return (chunk & ((1 << atom_shift) - 1)) ^ (row % kAtomTokens >> (3 - atom_shift));
}

// The index, in 16-byte chunks, of a token's `chunk` in its group; `token` is in [0, 16).
__host__ __device__ constexpr int kv_group_chunk(int atom_shift, int chunks_per_token, int token, int chunk) {
  if (atom_shift < 0) return token * chunks_per_token + chunk;
  const int atom = token / kAtomTokens * (chunks_per_token >> atom_shift) + (chunk >> atom_shift);
  return ((atom * kAtomTokens + token % kAtomTokens) << atom_shift) + kv_atom_chunk(atom_shift, token, chunk);
}

// The token, counted from the group's first, that owns 16-byte chunk `index` of it or of groups behind it.
__host__ __device__ constexpr int kv_group_token(int atom_shift, int chunks_per_token, int index) {
  if (atom_shift < 0) return index / chunks_per_token;
  return index / (chunks_per_token * kAtomTokens) * kAtomTokens + (index >> atom_shift) % kAtomTokens;
}

// Bytes from the start of a page to the group of `token` (of the page); `values` is 0 for keys, 1 for values.
__host__ __device__ constexpr int64_t kv_group_offset(int values, int kv_head, int token, int num_kv_heads,
                                                      int block_size, int bytes_per_token) {
  return (static_cast<int64_t>(values * num_kv_heads + kv_head) * block_size +
          token / kGroupTokens * kGroupTokens) *
         bytes_per_token;
}

}  // namespace quire::cuda
