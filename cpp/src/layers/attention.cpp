#include "layers/attention.h"

#include <algorithm>

#include "util/check.h"

namespace quire {

Attention::Attention(BuildContext& build, const AttentionConfig& config) : config_(config) {
  AttentionFeatures features;
  features.dtype = build.dtype;
  features.head_size = config.head_size;
  features.block_size = build.block_size;
  features.sliding_window = config.sliding_window > 0;
  features.soft_cap = config.soft_cap > 0;
  if (const char* reason = build.ops.attention_refusal(features)) {
    throw InvalidArgument(str("no attention kernel of backend '", build.ops.backend, "' (", build.ops.variant,
                              ") fits this model: ", reason));
  }
  if (config.sliding_window > 0) {
    spec_.kind = KVCacheKind::kSlidingWindow;
    spec_.sliding_window = config.sliding_window;
  }
  spec_.block_size = build.block_size;
  spec_.num_kv_heads = config.num_kv_heads;
  spec_.head_size = config.head_size;
  spec_.dtype = dtype_name(build.dtype);
  spec_.layout = build.ops.backend;
  const size_t page =
      build.ops.kv_page_bytes(build.block_size, config.num_kv_heads, config.head_size, build.dtype);
  spec_.page_bytes = static_cast<int64_t>((page + 63) / 64 * 64);
  build.workspace_bytes =
      std::max(build.workspace_bytes,
               build.ops.attention_workspace_bytes(build.max_num_tokens, build.max_model_len,
                                                   config.num_heads, config.num_kv_heads, config.head_size));
}

void Attention::forward(const ForwardContext& ctx, TensorView out, TensorView q, TensorView k, TensorView v,
                        const RotaryEmbedding& rotary, TensorView positions) const {
  const auto layer = static_cast<size_t>(config_.layer);
  const AttentionMetadata& batch = ctx.attention_metadata[static_cast<size_t>(ctx.kv_cache_groups[layer])];
  rotary.forward_and_store(ctx, q, k, v, positions, ctx.kv_caches[layer], batch.slot_mapping);
  if (ctx.pieces != nullptr) {
    // Its launch depends on the lengths of the step, which a graph would freeze.
    ctx.pieces->run_between([this, out, q](const ForwardContext& later) { attend(later, out, q); });
  } else {
    attend(ctx, out, q);
  }
}

void Attention::attend(const ForwardContext& ctx, TensorView out, TensorView q) const {
  const auto layer = static_cast<size_t>(config_.layer);
  const KVCacheView& kv_cache = ctx.kv_caches[layer];
  const AttentionMetadata& batch = ctx.attention_metadata[static_cast<size_t>(ctx.kv_cache_groups[layer])];
  if (ctx.ops.plan_attention != nullptr && config_.layer == batch.first_layer) {
    AttentionPlanArgs plan;
    plan.plan = batch.attention_plan;
    plan.query_start_loc = batch.query_start_loc;
    plan.seq_lens = batch.seq_lens;
    plan.num_decode_rows = batch.num_decode_rows;
    plan.max_query_len = batch.max_query_len;
    plan.max_seq_len = batch.max_seq_len;
    plan.num_tokens = static_cast<int32_t>(q.shape[0]);
    plan.num_heads = config_.num_heads;
    plan.num_kv_heads = config_.num_kv_heads;
    plan.head_size = config_.head_size;
    plan.block_size = kv_cache.block_size;
    plan.sliding_window = config_.sliding_window;
    ctx.ops.plan_attention(ctx.launch, plan);
  }
  PagedAttentionArgs args;
  args.out = out;
  args.query = q;
  args.kv_cache = kv_cache;
  args.block_table = batch.block_table;
  args.query_start_loc = batch.query_start_loc;
  args.seq_lens = batch.seq_lens;
  args.num_decode_rows = batch.num_decode_rows;
  args.max_query_len = batch.max_query_len;
  args.max_seq_len = batch.max_seq_len;
  args.scale = config_.scale;
  args.soft_cap = config_.soft_cap;
  args.sliding_window = config_.sliding_window;
  args.plan = batch.attention_plan;
  ctx.ops.paged_attention(ctx.launch, args);
}

}  // namespace quire
