// What an attention kernel is asked for: a cache, a batch, a layer.
#pragma once

#include <cstdint>

#include "quire/kernels/tensor_view.h"

namespace quire {

// One layer's KV cache: `num_blocks` pages of `block_size` tokens, keys and values of KH heads of D.
// The layout within a page belongs to the backend: only its ops read or write one.
struct KVCacheView {
  void* data = nullptr;           // page 0; 64-byte aligned
  int64_t page_stride_bytes = 0;  // at least kv_page_bytes, a multiple of 64
  int32_t num_blocks = 0;
  int32_t block_size = 0;  // tokens a page: a multiple of 16
  int32_t num_kv_heads = 0;
  int32_t head_size = 0;
  DType dtype = DType::kBFloat16;
};

// A step's batch as attention sees it: the same for every layer of a KV cache group, for the plan and for the
// kernels.
//
// Request r owns query rows [query_start_loc[r], query_start_loc[r + 1]). Its last query row sits at absolute
// position seq_lens[r] - 1, and the keys and values of this step are in the cache before it is attended to.
struct AttentionMetadata {
  // Request r's block ids are block_table[state_indices[r]]: they stay where they are when r changes.
  TensorView block_table;      // [*, >= ceil(max_seq_len / block_size)] int32; rows may be strided
  TensorView state_indices;    // [R] int32; any legal one for rows without query rows
  TensorView slot_mapping;     // [T] int64, for write_kv_cache
  TensorView query_start_loc;  // [R + 1] int32, ascending from 0
  TensorView seq_lens;         // [R] int32
  // [1] int32, or none: how many keys in front all decode rows share, as the same blocks; less than any of
  // these' seq_len. A backend may read them once for all rows.
  TensorView common_prefix_len;
  // On the host, for launch shapes. A captured launch is replayed with other tensors behind the same
  // addresses: then these are upper bounds.
  int32_t num_decode_rows = 0;  // the first rows, which have one query row each (or none, with seq_len 0)
  int32_t max_query_len = 0;    // of all rows
  int32_t max_seq_len = 0;
  // On the host, and not in a captured launch: whether a decode row attends to keys and values, besides its
  // own token's, that this step writes. It has found another request's blocks as these were scheduled. Where
  // it is false they may be read before the kernels in front have ended.
  bool has_new_prefixes = false;
  void* plan = nullptr;  // attention_plan_bytes, 256-byte aligned, where the backend has one
};

// What is the same in every step of one layer's attention.
//
// Causal: the query row at position p attends to positions (p - sliding_window, p]. Query head h reads KV
// head h / (H / KH).
struct AttentionLayer {
  DType dtype = DType::kBFloat16;  // of queries, output and cache
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_size = 0;
  int32_t block_size = 0;
  float scale = 1.0F;
  float soft_cap = 0.0F;                // 0: none; else scores become cap * tanh(score / cap)
  int32_t sliding_window = 0;           // 0: none
  const float* alibi_slopes = nullptr;  // [H], or null
  const float* sinks = nullptr;         // [H] extra logits in the softmax's sum, or null
  int32_t kernel = 0;                   // set by select_attention; only its backend knows what it means
};

}  // namespace quire
