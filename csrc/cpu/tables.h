// The kernel table of one instruction set.
#pragma once

#include <limits>

#include "ops.h"

namespace quire::cpu {

template <const Isa& kIsa>
constexpr KernelTable make_table(const char* variant) {
  return {
      .backend = "cpu",
      .variant = variant,
      .weight_layout = "cpu-panels32",
      .create_state = nullptr,
      .destroy_state = nullptr,
      .embedding = embedding,
      .rms_norm = [](const LaunchContext& ctx, TensorView out, TensorView x, TensorView weight, float eps,
                     float weight_offset) { rms_norm(kIsa, ctx, out, x, weight, eps, weight_offset); },
      .fused_add_rms_norm =
          [](const LaunchContext& ctx, TensorView out, TensorView residual, TensorView x, TensorView weight,
             float eps, float weight_offset) {
            fused_add_rms_norm(kIsa, ctx, out, residual, x, weight, eps, weight_offset);
          },
      .fused_norm_add_rms_norm = nullptr,
      .layer_norm = layer_norm,
      .rotary_embedding =
          [](const LaunchContext& ctx, TensorView q, TensorView k, TensorView positions, TensorView cos_sin,
             bool interleaved) { rotary_embedding(kIsa, ctx, q, k, positions, cos_sin, interleaved); },
      .rotary_embedding_and_write_kv = nullptr,
      .activate = [](const LaunchContext& ctx, TensorView out, TensorView x,
                     Activation activation) { activate(kIsa, ctx, out, x, activation); },
      .activate_and_mul = [](const LaunchContext& ctx, TensorView out, TensorView x,
                             Activation activation) { activate_and_mul(kIsa, ctx, out, x, activation); },
      .soft_cap = [](const LaunchContext& ctx, TensorView x, float cap) { soft_cap(kIsa, ctx, x, cap); },
      .scale = scale,
      .add = add,
      .gate_rows = gate_rows,
      .gather_rows = gather_rows,
      .linear_weight_bytes = linear_weight_bytes,
      .linear_pack_rows = linear_pack_rows,
      .linear_workspace_bytes =
          [](int64_t max_tokens, const LinearWeight& weight) {
            return linear_workspace_bytes(kIsa, max_tokens, weight);
          },
      .linear = [](const LaunchContext& ctx, TensorView out, TensorView x, const LinearWeight& weight,
                   const float* bias) { linear(kIsa, ctx, out, x, weight, bias); },
      .linear_add = nullptr,
      .linear_activate_and_mul = nullptr,
      .route_to_experts = route_to_experts,
      .fused_experts_workspace_bytes =
          [](int64_t max_tokens, int32_t top_k, const ExpertWeights& experts, const ExpertLoraArgs* loras) {
            return fused_experts_workspace_bytes(kIsa, max_tokens, top_k, experts, loras);
          },
      .fused_experts = [](const LaunchContext& ctx,
                          const FusedExpertsArgs& args) { fused_experts(kIsa, ctx, args); },
      .routed_experts = nullptr,
      .lora_workspace_bytes = [](const LoraShape& shape) { return lora_workspace_bytes(kIsa, shape); },
      .add_lora = [](const LaunchContext& ctx, const LoraArgs& args) { add_lora(kIsa, ctx, args); },
      .linear_add_lora = nullptr,
      .linear_add_lora_activate_and_mul = nullptr,
      .lora_segment_rows = std::numeric_limits<int32_t>::max(),
      .lora_rank_multiple = 1,
      .select_attention = select_attention,
      .kv_page_bytes = kv_page_bytes,
      .attention_workspace_bytes = attention_workspace_bytes,
      .attention_plan_bytes = nullptr,
      .use_cascade_attention = nullptr,
      .plan_attention = nullptr,
      .write_kv_cache = write_kv_cache,
      .paged_attention =
          [](const LaunchContext& ctx, TensorView out, TensorView query, const KVCacheView& kv_cache,
             const AttentionMetadata& batch,
             const AttentionLayer& layer) { paged_attention(kIsa, ctx, out, query, kv_cache, batch, layer); },
      .apply_logit_bias = apply_logit_bias,
      .apply_bitmask = apply_bitmask,
      .apply_bad_words = apply_bad_words,
      .apply_penalties = apply_penalties,
      .sampling_workspace_bytes = nullptr,
      .sample = [](const LaunchContext& ctx, const SamplingArgs& args) { sample(kIsa, ctx, args); },
      .log_softmax = [](const LaunchContext& ctx, TensorView logprobs,
                        TensorView logits) { log_softmax(kIsa, ctx, logprobs, logits); },
      .top_logprobs = [](const LaunchContext& ctx,
                         const TopLogprobsArgs& args) { top_logprobs(kIsa, ctx, args); },
      .fill_random = fill_random,
      .batch = nullptr,
      .peer = nullptr,
  };
}

// The tables this machine can run beyond "generic", best first. Written once per architecture
// (tables_x86.cpp, tables_portable.cpp). Returns how many it wrote.
int available_tables(const KernelTable** tables);
constexpr int kMaxTables = 4;

}  // namespace quire::cpu
