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

void Attention::forward(const ForwardContext& ctx, TensorView out, TensorView q, TensorView k,
                        TensorView v) const {
  const auto layer = static_cast<size_t>(config_.layer);
  const KVCacheView& kv_cache = ctx.kv_caches[layer];
  const AttentionMetadata& batch = ctx.attention_metadata[static_cast<size_t>(ctx.kv_cache_groups[layer])];
  ctx.ops.write_kv_cache(ctx.launch, kv_cache, k, v, batch.slot_mapping);
  PagedAttentionArgs args;
  args.out = out;
  args.query = q;
  args.kv_cache = kv_cache;
  args.block_table = batch.block_table;
  args.query_start_loc = batch.query_start_loc;
  args.seq_lens = batch.seq_lens;
  args.max_query_len = batch.max_query_len;
  args.max_seq_len = batch.max_seq_len;
  args.scale = config_.scale;
  args.soft_cap = config_.soft_cap;
  args.sliding_window = config_.sliding_window;
  ctx.ops.paged_attention(ctx.launch, args);
}

}  // namespace quire
