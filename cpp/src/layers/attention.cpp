#include "layers/attention.h"

#include <algorithm>
#include <cstring>

#include "util/check.h"

namespace quire {

namespace {

// In the backend's memory.
const float* copy_floats(BuildContext& build, const std::vector<float>& values) {
  std::byte* out = build.arena.allocate_computed(values.size() * sizeof(float));
  build.loader.generate(out, static_cast<int64_t>(values.size()), sizeof(float),
                        [values](int64_t begin, int64_t end, std::byte* to) {
                          std::memcpy(to, values.data() + begin,
                                      static_cast<size_t>(end - begin) * sizeof(float));
                        });
  return reinterpret_cast<const float*>(out);
}

}  // namespace

Attention::Attention(BuildContext& build, const AttentionConfig& config)
    : index_(config.layer),
      layer_{.dtype = build.dtype,
             .num_heads = config.num_heads,
             .num_kv_heads = config.num_kv_heads,
             .head_size = config.head_size,
             .block_size = build.block_size,
             .scale = config.scale,
             .soft_cap = config.soft_cap,
             .sliding_window = config.sliding_window,
             .sinks = config.sinks} {
  if (!config.alibi_slopes.empty()) layer_.alibi_slopes = copy_floats(build, config.alibi_slopes);
  if (const char* reason = build.ops.select_attention(layer_)) {
    throw InvalidArgument(str("no attention kernel of backend '", build.ops.backend, "' (", build.ops.variant,
                              ") fits this model: ", reason));
  }
  build.compute_hash.add(layer_.kernel);
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
                        const RotaryEmbedding* rotary, const HeadNorms* norms, TensorView positions) const {
  const auto index = static_cast<size_t>(index_);
  const AttentionMetadata& batch = ctx.attention_metadata[static_cast<size_t>(ctx.kv_cache_groups[index])];
  if (rotary != nullptr) {
    rotary->forward_and_store(ctx, q, k, v, norms, positions, ctx.kv_caches[index], batch.slot_mapping);
  } else {
    ctx.ops.write_kv_cache(ctx.launch, ctx.kv_caches[index], k, v, batch.slot_mapping);
  }
  if (ctx.pieces != nullptr) {
    // The launch depends on the lengths of the step, which a graph would freeze.
    ctx.pieces->run_between([this, out, q](const ForwardContext& later) { attend(later, out, q); });
  } else {
    attend(ctx, out, q);
  }
}

void Attention::attend(const ForwardContext& ctx, TensorView out, TensorView q) const {
  const auto index = static_cast<size_t>(index_), group = static_cast<size_t>(ctx.kv_cache_groups[index]);
  const AttentionMetadata& batch = ctx.attention_metadata[group];
  if (ctx.ops.plan_attention != nullptr && index_ == ctx.planning_layers[group])
    ctx.ops.plan_attention(ctx.launch, batch, layer_);
  if (ctx.kv_connector != nullptr) ctx.kv_connector->wait_for_layer_load(index_);
  if (out.shape[0] > 0) ctx.ops.paged_attention(ctx.launch, out, q, ctx.kv_caches[index], batch, layer_);
  if (ctx.kv_connector != nullptr) ctx.kv_connector->save_kv_layer(index_);
}

}  // namespace quire
