// Every operation the models need, as one table of function pointers that a backend fills.
//
// Shape letters: T tokens, R requests, H query heads, KH KV heads, D head size, V vocabulary,
// N outputs and K inputs of a linear. A null pointer means the backend does not support the op.
//
// Common rules: shapes and dtypes are the caller's promise (checked by layers/, not here); no op
// allocates; none throws; each only enqueues on ctx.stream. Sums are in fp32.
//
// Batch invariance: in the CPU tables a row's result is a function of that row's inputs alone, bitwise:
// it does not depend on T, R, the number of threads, or where chunk boundaries fall.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quire/kernels/attention_backend.h"
#include "quire/kernels/launch_context.h"
#include "quire/kernels/tensor_view.h"

namespace quire {

// A linear's weight [N, K] as the backend wants to read it. `packed` false is plain row-major.
struct LinearWeight {
  void* data = nullptr;  // 64-byte aligned, linear_weight_bytes(n, k, dtype) when packed
  int64_t n = 0;
  int64_t k = 0;
  DType dtype = DType::kBFloat16;
  bool packed = false;
};

struct SamplingArgs {
  TensorView logits;           // [R, V] fp32, rows may be strided; overwritten
  const float* temperature;    // [R]; 0 is greedy: the highest logit, ties by lowest id
  const int32_t* top_k;        // [R]; 0: all
  const float* top_p;          // [R] in (0, 1]
  const float* min_p;          // [R] in [0, 1]
  const uint64_t* seed;        // [R]
  const int64_t* position;     // [R] index of the sampled token in its sequence
  int32_t* sampled_token_ids;  // [R] out
};

struct PenaltyArgs {
  TensorView logits;                 // [R, V] fp32; changed in place
  const int32_t* const* token_ids;   // [R] pointers to prompt then output tokens
  const int32_t* num_prompt_tokens;  // [R]
  const int32_t* num_tokens;         // [R]
  const float* presence;             // [R]; 0: none
  const float* frequency;            // [R]; 0: none
  const float* repetition;           // [R]; 1: none
};

struct KernelTable {
  const char* backend;  // "cpu"
  const char* variant;  // instruction set or architecture: "amx", "avx512", "avx2", "generic"

  // out[t, :] = table[ids[t] - vocab_start, :], or zeros when that row is not in the table.
  //   ids [T] int32; table [N, K], packed or not; out [T, K] fp32 | bf16
  void (*embedding)(const LaunchContext& ctx, TensorView out, TensorView ids, const LinearWeight& table,
                    int32_t vocab_start);

  // out[t, :] = x[t, :] / sqrt(mean(x[t, :]^2) + eps) * weight
  //   x, out [T, hidden] or [T, heads, hidden], fp32 | bf16; leading dimensions may be strided, the
  //   last is contiguous; weight [hidden], dtype of x. `out` may be `x`.
  void (*rms_norm)(const LaunchContext& ctx, TensorView out, TensorView x, TensorView weight, float eps);

  // residual += x; out = rms_norm(residual). All [T, hidden]; `out` may be `x`. The sum is rounded to
  // the residual's dtype before it is normalised, so fused and unfused agree.
  void (*fused_add_rms_norm)(const LaunchContext& ctx, TensorView out, TensorView residual, TensorView x,
                             TensorView weight, float eps);

  // Rotates the first rotary_dim elements of every head of q and k in place ("neox" halves: element i
  // pairs with i + rotary_dim / 2).
  //   q [T, H, D], k [T, KH, D] fp32 | bf16, tokens strided; positions [T] int32
  //   cos_sin [max_position, rotary_dim] fp32: rotary_dim / 2 cosines, then as many sines
  void (*rotary_embedding)(const LaunchContext& ctx, TensorView q, TensorView k, TensorView positions,
                           TensorView cos_sin);

  // out[t, i] = silu(x[t, i]) * x[t, I + i].   x [T, 2 I], out [T, I]
  void (*silu_and_mul)(const LaunchContext& ctx, TensorView out, TensorView x);

  // out[r, :] = x[index[r], :].   x [T, K], index [R] int32, out [R, K] same dtype
  void (*gather_rows)(const LaunchContext& ctx, TensorView out, TensorView x, TensorView index);

  // ---- linear -------------------------------------------------------------------------------------
  // Bytes of a packed [n, k] weight of `dtype` (fp32 | bf16).
  size_t (*linear_weight_bytes)(int64_t n, int64_t k, DType dtype);
  // Writes rows [row_begin, row_begin + rows.shape[0]) of `weight`, converting from rows' dtype (fp32 |
  // fp16 | bf16; [*, K], rows strided). `weight.data` was zero before its first row was written. Disjoint
  // row ranges may be packed by different calls in any order.
  void (*linear_pack_rows)(const LaunchContext& ctx, const LinearWeight& weight, int64_t row_begin,
                           TensorView rows);
  // Scratch that `linear` needs for up to max_tokens rows.
  size_t (*linear_workspace_bytes)(int64_t max_tokens, int64_t n, int64_t k, DType dtype);
  // out[t, n] = sum_k x[t, k] * weight[n, k] (+ bias[n]).
  //   x [T, K] dtype of weight, rows strided; out [T, N] fp32 or dtype of x, rows strided; bias [N] fp32,
  //   or null. One accumulation order over K for every T.
  void (*linear)(const LaunchContext& ctx, TensorView out, TensorView x, const LinearWeight& weight,
                 const float* bias);

  // ---- attention ----------------------------------------------------------------------------------
  // Null when the features are supported, else why not ("head size 48 is not a multiple of 16").
  const char* (*attention_refusal)(const AttentionFeatures& features);
  // Bytes of one page: keys and values of block_size tokens.
  size_t (*kv_page_bytes)(int32_t block_size, int32_t num_kv_heads, int32_t head_size, DType dtype);
  size_t (*attention_workspace_bytes)(int32_t max_tokens, int32_t max_seq_len, int32_t num_heads,
                                      int32_t num_kv_heads, int32_t head_size);
  // Stores keys and values of T tokens in slots slot_mapping[t] = block_id * block_size + offset; a
  // negative slot is skipped.
  //   k, v [T, KH, D] fp32 | bf16 of the cache's dtype, tokens strided; slot_mapping int32 | int64
  void (*write_kv_cache)(const LaunchContext& ctx, const KVCacheView& kv_cache, TensorView k, TensorView v,
                         TensorView slot_mapping);
  // Never reads a slot at or beyond seq_lens[r] into a result: unwritten slots may hold NaN.
  void (*paged_attention)(const LaunchContext& ctx, const PagedAttentionArgs& args);

  // ---- sampling -----------------------------------------------------------------------------------
  void (*apply_penalties)(const LaunchContext& ctx, const PenaltyArgs& args);
  // Scales by temperature, filters by top-k, then top-p and min-p, and draws with a counter-based
  // generator keyed by (seed, position).
  void (*sample)(const LaunchContext& ctx, const SamplingArgs& args);
  // logprobs [R, V] fp32 = log_softmax(logits). `logprobs` may be `logits`.
  void (*log_softmax)(const LaunchContext& ctx, TensorView logprobs, TensorView logits);

  // ---- wishes -------------------------------------------------------------------------------------
  // paged_attention is faster when requests with one query row come before all others in the batch. Not so in
  // the CPU tables, which hand out tiles one by one.
  bool decodes_first = false;
};

}  // namespace quire
