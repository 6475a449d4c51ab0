// The layout of a KV cache page.
//
// fp32, per KV head: keys [D][block_size], then values [block_size][D].
// bf16, per KV head: keys [D' / 2][block_size][2], then values [block_size / 2][D][2], with D' = D
// padded to 32 by zeros. Both products of attention so find their right operand in place: depth-major,
// in pairs along the depth.
#pragma once

#include <cstdint>

#include "quire/kernels/attention_backend.h"

namespace quire::cpu {

constexpr int64_t key_depth(int64_t head_size, DType dtype) {
  return dtype == DType::kBFloat16 ? (head_size + 31) / 32 * 32 : head_size;
}

// Bytes of the keys of one head in one page.
constexpr int64_t key_bytes(int64_t block_size, int64_t head_size, DType dtype) {
  return block_size * key_depth(head_size, dtype) * static_cast<int64_t>(dtype_bytes(dtype));
}

// Bytes of the keys and values of one head in one page.
constexpr int64_t head_bytes(int64_t block_size, int64_t head_size, DType dtype) {
  return key_bytes(block_size, head_size, dtype) +
         block_size * head_size * static_cast<int64_t>(dtype_bytes(dtype));
}

inline std::byte* page_head(const KVCacheView& cache, int64_t block_id, int64_t kv_head) {
  return static_cast<std::byte*>(cache.data) + block_id * cache.page_stride_bytes +
         kv_head * head_bytes(cache.block_size, cache.head_size, cache.dtype);
}

}  // namespace quire::cpu
