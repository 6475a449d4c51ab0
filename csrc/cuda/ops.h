// The operations of the CUDA table. quire/kernels/ops.h is their contract.
#pragma once

#include "quire/kernels/ops.h"

namespace quire::cuda {

// element_ops.cu
void embedding(const LaunchContext& ctx, TensorView out, TensorView ids, const LinearWeight& table,
               int32_t vocab_start);
void gather_rows(const LaunchContext& ctx, TensorView out, TensorView x, TensorView index);
void activate(const LaunchContext& ctx, TensorView out, TensorView x, Activation activation);
void activate_and_mul(const LaunchContext& ctx, TensorView out, TensorView x, Activation activation);
void soft_cap(const LaunchContext& ctx, TensorView x, float cap);
void scale(const LaunchContext& ctx, TensorView x, float factor);
void add(const LaunchContext& ctx, TensorView x, TensorView y);
void gate_rows(const LaunchContext& ctx, TensorView x, TensorView gate);
void fill_random(const LaunchContext& ctx, TensorView out, float scale, uint64_t seed);

// experts/
void route_to_experts(const LaunchContext& ctx, const ExpertRoutingArgs& args);
size_t fused_experts_workspace_bytes(int64_t max_tokens, int32_t top_k, const ExpertWeights& experts,
                                     const ExpertLoraArgs* loras);
void fused_experts(const LaunchContext& ctx, const FusedExpertsArgs& args);
void routed_experts(const LaunchContext& ctx, const ExpertRoutingArgs& routing, const FusedExpertsArgs& args);

// norms.cu
void rms_norm(const LaunchContext& ctx, TensorView out, TensorView x, TensorView weight, float eps,
              float weight_offset);
void fused_add_rms_norm(const LaunchContext& ctx, TensorView out, TensorView residual, TensorView x,
                        TensorView weight, float eps, float weight_offset);
void fused_norm_add_rms_norm(const LaunchContext& ctx, TensorView out, TensorView residual, TensorView x,
                             const RmsNormParams& x_norm, const RmsNormParams& norm);
void layer_norm(const LaunchContext& ctx, TensorView out, TensorView x, TensorView weight, TensorView bias,
                float eps);

// kv_cache.cu
size_t kv_page_bytes(int32_t block_size, int32_t num_kv_heads, int32_t head_size, DType dtype);
void rotary_embedding(const LaunchContext& ctx, TensorView q, TensorView k, TensorView positions,
                      TensorView cos_sin, bool interleaved);
void write_kv_cache(const LaunchContext& ctx, const KVCacheView& kv_cache, TensorView k, TensorView v,
                    TensorView slot_mapping);
void rotary_embedding_and_write_kv(const LaunchContext& ctx, TensorView q, TensorView k, TensorView v,
                                   const HeadNorms* norms, TensorView positions, TensorView cos_sin,
                                   bool interleaved, const KVCacheView& kv_cache, TensorView slot_mapping);

// attention/
const char* select_attention(AttentionLayer& layer);
size_t attention_workspace_bytes(int32_t max_tokens, int32_t max_seq_len, int32_t num_heads,
                                 int32_t num_kv_heads, int32_t head_size);
size_t attention_plan_bytes(int32_t max_num_seqs, int32_t max_tokens);
bool use_cascade_attention(const KVCacheView& kv_cache, int32_t num_decode_rows, int32_t common_prefix_len);
void plan_attention(const LaunchContext& ctx, const AttentionMetadata& batch, const AttentionLayer& layer);
void paged_attention(const LaunchContext& ctx, TensorView out, TensorView query, const KVCacheView& cache,
                     const AttentionMetadata& batch, const AttentionLayer& layer);

// linear.cpp
inline constexpr size_t kLinearWorkspaceBytes = size_t{32} << 20;  // of 16-bit and float32 weights
void* create_state(LaunchError* error);
void destroy_state(void* state);
size_t linear_weight_bytes(int64_t n, int64_t k, DType dtype);
size_t linear_workspace_bytes(int64_t max_tokens, const LinearWeight& weight);
void linear(const LaunchContext& ctx, TensorView out, TensorView x, const LinearWeight& weight,
            const float* bias);
bool linear_add(const LaunchContext& ctx, TensorView sum, TensorView scratch, TensorView x,
                const LinearWeight& weight, const float* bias);
void linear_activate_and_mul(const LaunchContext& ctx, TensorView out, TensorView y, TensorView x,
                             const LinearWeight& weight, const float* bias, Activation activation);

// lora/
inline constexpr int32_t kLoraSegmentRows = 16;  // of a tensor core's product
inline constexpr int32_t kLoraRankMultiple = 8;
size_t lora_workspace_bytes(const LoraShape& shape);
void add_lora(const LaunchContext& ctx, const LoraArgs& args);
void linear_add_lora(const LaunchContext& ctx, const LinearWeight& weight, const float* bias,
                     const LoraArgs& args);
void linear_add_lora_activate_and_mul(const LaunchContext& ctx, TensorView out, const LinearWeight& weight,
                                      const float* bias, const LoraArgs& args, Activation activation);

// logits_ops.cu
void apply_logit_bias(const LaunchContext& ctx, const LogitBiasArgs& args);
void apply_bitmask(const LaunchContext& ctx, TensorView logits, TensorView rows, TensorView bitmask);
void apply_bad_words(const LaunchContext& ctx, const BadWordsArgs& args);
void apply_penalties(const LaunchContext& ctx, const PenaltyArgs& args);
void log_softmax(const LaunchContext& ctx, TensorView logprobs, TensorView logits);
void top_logprobs(const LaunchContext& ctx, const TopLogprobsArgs& args);

// sampling.cu
size_t sampling_workspace_bytes(int64_t rows, int64_t vocab_size);
void sample(const LaunchContext& ctx, const SamplingArgs& args);

// batch_ops.cu
extern const BatchOps kBatchOps;

// peers/peer_ops.cu
extern const PeerOps kPeerOps;

}  // namespace quire::cuda
