// The kernel table of one instruction set.
#pragma once

#include "ops.h"

namespace quire::cpu {

template <const Isa& kIsa>
constexpr KernelTable make_table(const char* variant) {
  return {
      .backend = "cpu",
      .variant = variant,
      .embedding = embedding,
      .rms_norm = [](const LaunchContext& ctx, TensorView out, TensorView x, TensorView weight,
                     float eps) { rms_norm(kIsa, ctx, out, x, weight, eps); },
      .fused_add_rms_norm = [](const LaunchContext& ctx, TensorView out, TensorView residual, TensorView x,
                               TensorView weight,
                               float eps) { fused_add_rms_norm(kIsa, ctx, out, residual, x, weight, eps); },
      .rotary_embedding = [](const LaunchContext& ctx, TensorView q, TensorView k, TensorView positions,
                             TensorView cos_sin) { rotary_embedding(kIsa, ctx, q, k, positions, cos_sin); },
      .silu_and_mul = [](const LaunchContext& ctx, TensorView out,
                         TensorView x) { silu_and_mul(kIsa, ctx, out, x); },
      .gather_rows = gather_rows,
      .linear_weight_bytes = linear_weight_bytes,
      .linear_pack_rows = linear_pack_rows,
      .linear_workspace_bytes =
          [](int64_t max_tokens, int64_t n, int64_t k, DType dtype) {
            return linear_workspace_bytes(kIsa, max_tokens, n, k, dtype);
          },
      .linear = [](const LaunchContext& ctx, TensorView out, TensorView x, const LinearWeight& weight,
                   const float* bias) { linear(kIsa, ctx, out, x, weight, bias); },
      .attention_refusal = attention_refusal,
      .kv_page_bytes = kv_page_bytes,
      .attention_workspace_bytes = attention_workspace_bytes,
      .write_kv_cache = write_kv_cache,
      .paged_attention = [](const LaunchContext& ctx,
                            const PagedAttentionArgs& args) { paged_attention(kIsa, ctx, args); },
      .apply_penalties = apply_penalties,
      .sample = [](const LaunchContext& ctx, const SamplingArgs& args) { sample(kIsa, ctx, args); },
      .log_softmax = [](const LaunchContext& ctx, TensorView logprobs,
                        TensorView logits) { log_softmax(kIsa, ctx, logprobs, logits); },
  };
}

// The tables this machine can run beyond "generic", best first. Written once per architecture
// (tables_x86.cpp, tables_portable.cpp). Returns how many it wrote.
int available_tables(const KernelTable** tables);
constexpr int kMaxTables = 4;

}  // namespace quire::cpu
