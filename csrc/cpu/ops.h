// The operations, written once for all instruction sets. quire/kernels/ops.h is their contract.
#pragma once

#include "isa/kernels.h"
#include "quire/kernels/ops.h"

namespace quire::cpu {

inline int type_index(DType dtype) { return dtype == DType::kBFloat16 ? kBF16 : kF32; }

// element_ops.cpp
void embedding(const LaunchContext& ctx, TensorView out, TensorView ids, const LinearWeight& table,
               int32_t vocab_start);
void gather_rows(const LaunchContext& ctx, TensorView out, TensorView x, TensorView index);
void rms_norm(const Isa& isa, const LaunchContext& ctx, TensorView out, TensorView x, TensorView weight,
              float eps, float weight_offset);
void fused_add_rms_norm(const Isa& isa, const LaunchContext& ctx, TensorView out, TensorView residual,
                        TensorView x, TensorView weight, float eps, float weight_offset);
void layer_norm(const LaunchContext& ctx, TensorView out, TensorView x, TensorView weight, TensorView bias,
                float eps);
void rotary_embedding(const Isa& isa, const LaunchContext& ctx, TensorView q, TensorView k,
                      TensorView positions, TensorView cos_sin, bool interleaved);
void activate(const Isa& isa, const LaunchContext& ctx, TensorView out, TensorView x, Activation activation);
void activate_and_mul(const Isa& isa, const LaunchContext& ctx, TensorView out, TensorView x,
                      Activation activation);
void soft_cap(const Isa& isa, const LaunchContext& ctx, TensorView x, float cap);
void scale(const LaunchContext& ctx, TensorView x, float factor);
void add(const LaunchContext& ctx, TensorView x, TensorView y);
void gate_rows(const LaunchContext& ctx, TensorView x, TensorView gate);
void fill_random(const LaunchContext& ctx, TensorView out, float scale, uint64_t seed);

// linear_weight.cpp
size_t linear_weight_bytes(int64_t n, int64_t k, DType dtype);
void linear_pack_rows(const LaunchContext& ctx, const LinearWeight& weight, int64_t row_begin,
                      TensorView rows);

// linear.cpp
size_t linear_workspace_bytes(const Isa& isa, int64_t max_tokens, const LinearWeight& weight);
void linear(const Isa& isa, const LaunchContext& ctx, TensorView out, TensorView x,
            const LinearWeight& weight, const float* bias);

// experts.cpp
void route_to_experts(const LaunchContext& ctx, const ExpertRoutingArgs& args);
size_t fused_experts_workspace_bytes(const Isa& isa, int64_t max_tokens, int32_t top_k,
                                     const ExpertWeights& experts, const ExpertLoraArgs* loras);
void fused_experts(const Isa& isa, const LaunchContext& ctx, const FusedExpertsArgs& args);

// lora.cpp
size_t lora_workspace_bytes(const Isa& isa, const LoraShape& shape);
void add_lora(const Isa& isa, const LaunchContext& ctx, const LoraArgs& args);

// kv_cache.cpp
size_t kv_page_bytes(int32_t block_size, int32_t num_kv_heads, int32_t head_size, DType dtype);
void write_kv_cache(const LaunchContext& ctx, const KVCacheView& kv_cache, TensorView k, TensorView v,
                    TensorView slot_mapping);

// attention.cpp
const char* select_attention(AttentionLayer& layer);
size_t attention_workspace_bytes(int32_t max_tokens, int32_t max_seq_len, int32_t num_heads,
                                 int32_t num_kv_heads, int32_t head_size);
void paged_attention(const Isa& isa, const LaunchContext& ctx, TensorView out, TensorView query,
                     const KVCacheView& kv_cache, const AttentionMetadata& batch,
                     const AttentionLayer& layer);

// penalties.cpp
void apply_logit_bias(const LaunchContext& ctx, const LogitBiasArgs& args);
void apply_bitmask(const LaunchContext& ctx, TensorView logits, TensorView rows, TensorView bitmask);
void apply_bad_words(const LaunchContext& ctx, const BadWordsArgs& args);
void apply_penalties(const LaunchContext& ctx, const PenaltyArgs& args);

// sampling.cpp
void sample(const Isa& isa, const LaunchContext& ctx, const SamplingArgs& args);
void log_softmax(const Isa& isa, const LaunchContext& ctx, TensorView logprobs, TensorView logits);
void top_logprobs(const Isa& isa, const LaunchContext& ctx, const TopLogprobsArgs& args);

}  // namespace quire::cpu
