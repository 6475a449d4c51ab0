// What an attention kernel is asked for, and why a backend may refuse.
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

// Causal attention of a ragged batch over paged keys and values.
//
// Request r owns query rows [query_start_loc[r], query_start_loc[r + 1]). Its last query row sits at
// absolute position seq_lens[r] - 1, and row i attends to positions (p - sliding_window, p], where p is
// its own position; the keys and values of this step are already in the cache. Query head h reads KV
// head h / (H / KH).
struct PagedAttentionArgs {
  TensorView out;    // [T, H, D] dtype of query; may not overlap query
  TensorView query;  // [T, H, D] dtype of the cache; tokens may be strided
  KVCacheView kv_cache;
  TensorView block_table;      // [R, >= ceil(max_seq_len / block_size)] int32; rows may be strided
  TensorView query_start_loc;  // [R + 1] int32, ascending from 0
  TensorView seq_lens;         // [R] int32
  // On the host, for launch shapes. A captured launch is replayed with other tensors behind the same
  // addresses: then these are upper bounds.
  int32_t num_decode_rows = 0;  // the first rows, which have one query row each (or none, with seq_len 0)
  int32_t max_query_len = 0;    // of all rows
  int32_t max_seq_len = 0;
  float scale = 1.0F;
  float soft_cap = 0.0F;                // 0: none; else scores become cap * tanh(score / cap)
  int32_t sliding_window = 0;           // 0: none
  const float* alibi_slopes = nullptr;  // [H], or null
  const float* sinks = nullptr;         // [H] extra logits in the softmax's sum, or null
  const void* plan = nullptr;           // of plan_attention with the same shapes, where the backend has one
};

// What does not change from layer to layer of one step.
struct AttentionPlanArgs {
  void* plan = nullptr;        // attention_plan_bytes, 256-byte aligned
  TensorView query_start_loc;  // as in PagedAttentionArgs, and so on
  TensorView seq_lens;
  int32_t num_decode_rows = 0;
  int32_t max_query_len = 0;
  int32_t max_seq_len = 0;
  int32_t num_tokens = 0;  // T
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_size = 0;
  int32_t block_size = 0;
  int32_t sliding_window = 0;
};

struct AttentionFeatures {
  DType dtype = DType::kBFloat16;
  int32_t head_size = 0;
  int32_t block_size = 0;
  bool soft_cap = false;
  bool sliding_window = false;
  bool alibi = false;
  bool sinks = false;
};

}  // namespace quire
