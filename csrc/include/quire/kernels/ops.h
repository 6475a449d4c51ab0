// Every operation the models need, as one table of function pointers that a backend fills.
//
// Shape letters: T tokens, R requests, H query heads, KH KV heads, D head size, V vocabulary,
// N outputs and K inputs of a linear. A null pointer means the backend does not support the op.
//
// Common rules: shapes and dtypes are the caller's promise (checked by layers/, not here); no op
// allocates; none throws; each only enqueues on ctx.stream. Sums are in fp32. All pointers, those inside the
// argument structs too, are the backend's memory: the device's for "cuda", or, where kernels only write, the
// host's pinned memory. "16-bit" is bf16 in the CPU tables, bf16 | fp16 in CUDA's.
//
// Batch invariance: in the CPU tables a row's result is a function of that row's inputs alone, bitwise:
// it does not depend on T, R, the number of threads, or where chunk boundaries fall.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quire/kernels/attention_backend.h"
#include "quire/kernels/batch_ops.h"
#include "quire/kernels/expert_ops.h"
#include "quire/kernels/launch_context.h"
#include "quire/kernels/lora_ops.h"
#include "quire/kernels/peer_ops.h"
#include "quire/kernels/tensor_view.h"

namespace quire {

// A linear's weight [N, K] as the backend wants to read it. `packed` false is plain row-major. Quantized, its
// elements are int8 and stand for (data[n, k] - zero_points[n]) * scales[n].
struct LinearWeight {
  void* data = nullptr;  // 64-byte aligned, linear_weight_bytes(n, k, element dtype) when packed
  int64_t n = 0;
  int64_t k = 0;
  DType dtype = DType::kBFloat16;  // of the inputs, and of the elements unless it is quantized
  bool packed = false;
  const float* scales = nullptr;       // [N]; null: not quantized
  const float* zero_points = nullptr;  // [N], whole numbers from -128 to 127; null: all 0
};

// What SamplingArgs::host_token_ids says of a row whose logits hold a NaN: no token can be drawn.
inline constexpr int32_t kNoToken = -1;

struct SamplingArgs {
  TensorView logits;           // [R, V] fp32, rows may be strided; overwritten
  const float* temperature;    // [R]; 0 is greedy: the highest logit, ties by lowest id
  const int32_t* top_k;        // [R]; 0: all
  const float* top_p;          // [R] in (0, 1]
  const float* min_p;          // [R] in [0, 1]
  const uint64_t* seed;        // [R]
  const int64_t* position;     // [R] index of the sampled token in its sequence
  int32_t* sampled_token_ids;  // [R] out; 0 where there is none
  // Unless null, copies of the tokens: to memory that the host reads (pinned for "cuda"), and each to a place
  // of its own, where it has one.
  int32_t* host_token_ids = nullptr;       // [R] out; kNoToken, or kNoTokenLeft, where there is none
  int32_t* const* token_places = nullptr;  // [R] of pointers; null: nowhere
  uint32_t* row_counters = nullptr;        // [R] for "cuda": zero, and zero again afterwards
  // Known on the host; what they rule out need not be computed. The conservative answers are the defaults.
  bool all_greedy = false;  // every temperature is 0
  bool any_filter = true;   // some row that is not greedy has top_k, top_p or min_p
  // Not null: no token is chosen yet. Of a rank's part of the vocabulary, without filters: [R] out, which of
  // its tokens each row would take, and how good it is. PeerOps::choose_tokens takes them. "cuda" only.
  uint64_t* best = nullptr;
  int32_t first_token_id = 0;  // the first column's, a multiple of 4
};

// bias[i] is added to logits[row[i], token_id[i]]; -inf forbids. The pairs are distinct.
struct LogitBiasArgs {
  TensorView logits;        // [R, V] fp32; changed in place
  const int32_t* row;       // [count]
  const int32_t* token_id;  // [count]
  const float* bias;        // [count]
  int32_t count = 0;
};

// Log-probabilities of n tokens, and of the likeliest few in the row of each. Ties by lowest id.
struct TopLogprobsArgs {
  TensorView logits;               // [n, V] fp32: the model's own; [R, V] with `row`
  const int32_t* chosen_token_id;  // [n]
  int32_t num_top = 0;             // [0, 128]
  float* chosen_logprob;           // [n] out
  int32_t* chosen_rank;            // [n] out; 1: the likeliest
  int32_t* top_token_ids;          // [n, num_top] out, likeliest first
  float* top_logprobs;             // [n, num_top] out
  const int32_t* row = nullptr;    // [n] of logits; null: n is R, and row i is the i-th's
  int32_t num_chosen = 0;          // n, where there is `row`
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

// Sequences of tokens that an output may not come to hold. The last token of sequence i is forbidden in its
// row when the row's output ends with the tokens before it.
struct BadWordsArgs {
  TensorView logits;                 // [R, V] fp32; changed in place
  const int32_t* const* token_ids;   // [R] pointers to prompt then output tokens
  const int32_t* num_prompt_tokens;  // [R]
  const int32_t* num_tokens;         // [R]
  const int32_t* row;                // [count]; several sequences may have one row
  const int32_t* begin;  // [count + 1]: sequence i is words[begin[i] .. begin[i + 1]), never empty
  const int32_t* words;
  int32_t count = 0;
};

// What a feed-forward part applies to each of its values.
enum class Activation : uint8_t {
  kSilu,
  kGelu,         // x * Phi(x)
  kGeluTanh,     // its approximation by tanh
  kRelu,         // max(x, 0)
  kReluSquared,  // max(x, 0)^2
  // g * sigmoid(1.702 g) * (u + 1), of g at most 7 and u from -7 to 7 (GPT-OSS); with a factor only.
  kClampedSwiglu,
};

// What an rms_norm takes beside the rows.
struct RmsNormParams {
  TensorView weight;
  float eps = 0.0F;
  float weight_offset = 0.0F;
};

// RMSNorms of each head of queries and keys: weights [head_size] of their dtype, the rest as in rms_norm.
struct HeadNorms {
  TensorView q_weight, k_weight;
  float eps = 0.0F;
  float weight_offset = 0.0F;
};

struct KernelTable {
  const char* backend;  // "cpu"
  const char* variant;  // instruction set or architecture: "amx", "avx512", "avx2", "generic", "sm_90"
  // How weights lie in memory: what tables of the same name have packed, each of them reads.
  const char* weight_layout;

  // What the backend keeps for one worker (library handles, choices made by measuring), for
  // LaunchContext::state; null: nothing. On failure returns null and writes why to `error`.
  void* (*create_state)(LaunchError* error);
  void (*destroy_state)(void* state);

  // out[t, :] = table[ids[t] - vocab_start, :], or zeros when that row is not in the table.
  //   ids [T] int32; table [N, K], packed or not; out [T, K] fp32 | bf16
  void (*embedding)(const LaunchContext& ctx, TensorView out, TensorView ids, const LinearWeight& table,
                    int32_t vocab_start);

  // out[t, :] = x[t, :] / sqrt(mean(x[t, :]^2) + eps) * (weight_offset + weight)
  //   x, out [T, hidden] or [T, heads, hidden], fp32 | 16-bit; leading dimensions may be strided, the
  //   last is contiguous; weight [hidden], dtype of x. weight_offset is 0, or 1 (Gemma). `out` may be `x`.
  void (*rms_norm)(const LaunchContext& ctx, TensorView out, TensorView x, TensorView weight, float eps,
                   float weight_offset);

  // residual += x; out = rms_norm(residual). All [T, hidden]; `out` may be `x`. The sum is rounded to
  // the residual's dtype before it is normalised, so fused and unfused agree.
  void (*fused_add_rms_norm)(const LaunchContext& ctx, TensorView out, TensorView residual, TensorView x,
                             TensorView weight, float eps, float weight_offset);

  // rms_norm of x by `x_norm`, rounded to its dtype, then fused_add_rms_norm of that by `norm`, in one:
  // bitwise what the two compute. All [T, hidden]; `out` may be `x`, which else stays as it is. Null: call
  // them one by one.
  void (*fused_norm_add_rms_norm)(const LaunchContext& ctx, TensorView out, TensorView residual, TensorView x,
                                  const RmsNormParams& x_norm, const RmsNormParams& norm);

  // out[t, :] = (x[t, :] - mean) / sqrt(variance + eps) * weight + bias
  //   x, out [T, hidden] fp32 | 16-bit, rows strided; weight [hidden], bias [hidden] or null data, dtype of
  //   x. `out` may be `x`.
  void (*layer_norm)(const LaunchContext& ctx, TensorView out, TensorView x, TensorView weight,
                     TensorView bias, float eps);

  // Rotates the first rotary_dim elements of every head of q and k in place. Element i pairs with
  // i + rotary_dim / 2 (GPT-NeoX), or, `interleaved`, 2 i with 2 i + 1 (GPT-J).
  //   q [T, H, D], k [T, KH, D] fp32 | bf16, tokens strided; positions [T] int32
  //   cos_sin [max_position, rotary_dim] fp32: rotary_dim / 2 cosines, then as many sines
  void (*rotary_embedding)(const LaunchContext& ctx, TensorView q, TensorView k, TensorView positions,
                           TensorView cos_sin, bool interleaved);

  // rms_norm of each head of q and k where there are `norms` (else null), rotary_embedding and write_kv_cache
  // in one. k is left in any state: only the cache gets its rotation. Null: call them one by one.
  void (*rotary_embedding_and_write_kv)(const LaunchContext& ctx, TensorView q, TensorView k, TensorView v,
                                        const HeadNorms* norms, TensorView positions, TensorView cos_sin,
                                        bool interleaved, const KVCacheView& kv_cache,
                                        TensorView slot_mapping);

  // out[t, i] = activation(x[t, i]).   x, out [T, I], rows strided; `out` may be `x`
  void (*activate)(const LaunchContext& ctx, TensorView out, TensorView x, Activation activation);
  // out[t, i] = activation(x[t, i]) * x[t, I + i].   x [T, 2 I], out [T, I], rows strided
  void (*activate_and_mul)(const LaunchContext& ctx, TensorView out, TensorView x, Activation activation);

  // x[t, i] = cap * tanh(x[t, i] / cap).   x [T, N] fp32, rows strided
  void (*soft_cap)(const LaunchContext& ctx, TensorView x, float cap);
  // x[t, i] *= factor.   x [T, N] fp32 | 16-bit, rows strided
  void (*scale)(const LaunchContext& ctx, TensorView x, float factor);
  // x[t, i] += y[t, i].   x, y [T, N] fp32 | 16-bit, alike, rows strided
  void (*add)(const LaunchContext& ctx, TensorView x, TensorView y);
  // x[t, i] *= sigmoid(gate[t, 0]).   x [T, N] fp32 | 16-bit, gate [T, 1] fp32, rows strided
  void (*gate_rows)(const LaunchContext& ctx, TensorView x, TensorView gate);

  // out[r, :] = x[index[r], :].   x [T, K], index [R] int32, out [R, K] same dtype
  void (*gather_rows)(const LaunchContext& ctx, TensorView out, TensorView x, TensorView index);

  // ---- linear -------------------------------------------------------------------------------------
  // Bytes of a packed [n, k] weight whose elements are `dtype` (fp32 | 16-bit | int8).
  size_t (*linear_weight_bytes)(int64_t n, int64_t k, DType dtype);
  // Writes rows [row_begin, row_begin + rows.shape[0]) of `weight`, converting from rows' dtype (fp32 |
  // fp16 | bf16; [*, K], rows strided), or of a quantized one from int8. `weight.data` was zero before its
  // first row was written. Disjoint row ranges may be packed by different calls in any order. Null: weights
  // are plain row-major, copied there.
  void (*linear_pack_rows)(const LaunchContext& ctx, const LinearWeight& weight, int64_t row_begin,
                           TensorView rows);
  // Scratch that `linear` needs for up to max_tokens rows. The weight's data is not looked at.
  size_t (*linear_workspace_bytes)(int64_t max_tokens, const LinearWeight& weight);
  // out[t, n] = sum_k x[t, k] * weight[n, k] (+ bias[n]).
  //   x [T, K] weight.dtype, rows strided; out [T, N] fp32 or dtype of x, rows strided; bias [N] fp32,
  //   or null; CUDA rounds it to out's dtype. In the CPU tables one accumulation order over K for every T.
  void (*linear)(const LaunchContext& ctx, TensorView out, TensorView x, const LinearWeight& weight,
                 const float* bias);

  // sum += linear(x), where the backend is quicker at that than at the two one after the other, which it
  // knows by the shapes alone; else returns false and enqueues nothing. The product may be rounded before it
  // is added, and be left in `scratch`.
  //   x [T, K], sum and scratch [T, N], alike. Null: never.
  bool (*linear_add)(const LaunchContext& ctx, TensorView sum, TensorView scratch, TensorView x,
                     const LinearWeight& weight, const float* bias);

  // out = activate_and_mul(y), where y = linear(x). It is computed in `y`, or nowhere.
  //   x [T, K], out [T, N / 2], y [T, N], alike. Null: call them one by one.
  void (*linear_activate_and_mul)(const LaunchContext& ctx, TensorView out, TensorView y, TensorView x,
                                  const LinearWeight& weight, const float* bias, Activation activation);

  // ---- mixtures of experts (expert_ops.h) ---------------------------------------------------------
  void (*route_to_experts)(const LaunchContext& ctx, const ExpertRoutingArgs& args);
  // Scratch that `fused_experts` and `routed_experts` need for up to max_tokens rows, with adapters within
  // the numbers in `loras`, or none where that is null. No weights are looked at.
  size_t (*fused_experts_workspace_bytes)(int64_t max_tokens, int32_t top_k, const ExpertWeights& experts,
                                          const ExpertLoraArgs* loras);
  void (*fused_experts)(const LaunchContext& ctx, const FusedExpertsArgs& args);
  // route_to_experts and then fused_experts of what it chose, bitwise the same, in one where that is quicker.
  // Tokens, top_k, expert_ids and weights are the same in both. Null: call them one by one.
  void (*routed_experts)(const LaunchContext& ctx, const ExpertRoutingArgs& routing,
                         const FusedExpertsArgs& args);

  // ---- low-rank adapters (lora_ops.h) -------------------------------------------------------------
  // Scratch that `add_lora` needs for any batch within `shape`.
  size_t (*lora_workspace_bytes)(const LoraShape& shape);
  void (*add_lora)(const LaunchContext& ctx, const LoraArgs& args);
  // args.out = linear(args.x), and add_lora to it; all rows are listed. Null: call them one by one.
  void (*linear_add_lora)(const LaunchContext& ctx, const LinearWeight& weight, const float* bias,
                          const LoraArgs& args);
  // activate_and_mul of that, to out [T, N / 2]. It is computed in args.out, or nowhere. There when
  // linear_add_lora is.
  void (*linear_add_lora_activate_and_mul)(const LaunchContext& ctx, TensorView out,
                                           const LinearWeight& weight, const float* bias,
                                           const LoraArgs& args, Activation activation);
  int32_t lora_segment_rows;   // the most that a LoraSegment may have
  int32_t lora_rank_multiple;  // of a LoraSlot

  // ---- attention ----------------------------------------------------------------------------------
  // Once for each layer, when it is built: sets layer.kernel to the backend's best kernel for the rest of it,
  // or to one that the environment names, and returns null; or returns why there is none ("head size 48 is
  // not a multiple of 16").
  const char* (*select_attention)(AttentionLayer& layer);
  // Bytes of one page: keys and values of block_size tokens.
  size_t (*kv_page_bytes)(int32_t block_size, int32_t num_kv_heads, int32_t head_size, DType dtype);
  size_t (*attention_workspace_bytes)(int32_t max_tokens, int32_t max_seq_len, int32_t num_heads,
                                      int32_t num_kv_heads, int32_t head_size);
  // Scratch that is the same for every layer of a step, in the backend's memory, beside the workspace:
  // batch.plan is written by plan_attention, once a step with any of the layers that share the batch, and
  // read by paged_attention. Null: none.
  size_t (*attention_plan_bytes)(int32_t max_num_seqs, int32_t max_tokens);
  // Whether attention is faster for being told that so many decode rows share so many keys in front
  // (AttentionMetadata::common_prefix_len), in a layer that attends to all keys. Null: it never is.
  bool (*use_cascade_attention)(const KVCacheView& kv_cache, int32_t num_decode_rows,
                                int32_t common_prefix_len);
  void (*plan_attention)(const LaunchContext& ctx, const AttentionMetadata& batch,
                         const AttentionLayer& layer);
  // Stores keys and values of T tokens in slots slot_mapping[t] = block_id * block_size + offset; a
  // negative slot is skipped.
  //   k, v [T, KH, D] fp32 | bf16 of the cache's dtype, tokens strided; slot_mapping int32 | int64
  void (*write_kv_cache)(const LaunchContext& ctx, const KVCacheView& kv_cache, TensorView k, TensorView v,
                         TensorView slot_mapping);
  // out = attention of query over the cache.
  //   query, out [T, H, D], tokens may be strided; they do not overlap
  // Never reads a slot at or beyond seq_lens[r] into a result: unwritten slots may hold NaN.
  void (*paged_attention)(const LaunchContext& ctx, TensorView out, TensorView query,
                          const KVCacheView& kv_cache, const AttentionMetadata& batch,
                          const AttentionLayer& layer);

  // ---- sampling -----------------------------------------------------------------------------------
  void (*apply_logit_bias)(const LaunchContext& ctx, const LogitBiasArgs& args);
  // logits[rows[i], v] = -inf where bit v % 32 of bitmask[i, v / 32] is 0.
  //   logits [R, V] fp32; rows [n] int32; bitmask [n, ceil(V / 32)] int32
  void (*apply_bitmask)(const LaunchContext& ctx, TensorView logits, TensorView rows, TensorView bitmask);
  void (*apply_bad_words)(const LaunchContext& ctx, const BadWordsArgs& args);
  void (*apply_penalties)(const LaunchContext& ctx, const PenaltyArgs& args);
  size_t (*sampling_workspace_bytes)(int64_t rows, int64_t vocab_size);  // null: none
  // Scales by temperature, filters by min-p, then top-k, then top-p, and draws with a counter-based
  // generator keyed by (seed, position). One kernel where there are no filters: LaunchContext::into.
  void (*sample)(const LaunchContext& ctx, const SamplingArgs& args);
  // logprobs [R, V] fp32 = log_softmax(logits). `logprobs` may be `logits`.
  void (*log_softmax)(const LaunchContext& ctx, TensorView logprobs, TensorView logits);
  void (*top_logprobs)(const LaunchContext& ctx, const TopLogprobsArgs& args);

  // ---- memory -------------------------------------------------------------------------------------
  // out[i] is uniform in [-scale, scale), a function of (seed, i).   out fp32 | 16-bit, dense
  void (*fill_random)(const LaunchContext& ctx, TensorView out, float scale, uint64_t seed);
  const BatchOps* batch;  // null: the batch is built on the host
  const PeerOps* peer;    // null: ranks meet in host memory

  // ---- wishes -------------------------------------------------------------------------------------
  // paged_attention is faster when requests with one query row come before all others in the batch. Not so in
  // the CPU tables, which hand out tiles one by one.
  bool decodes_first = false;
};

}  // namespace quire
