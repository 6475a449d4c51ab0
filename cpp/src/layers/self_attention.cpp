#include "layers/self_attention.h"

#include <algorithm>

#include "util/check.h"

namespace quire {
namespace {

AttentionConfig attention_config(const SelfAttentionConfig& config, int64_t num_heads, int64_t num_kv_heads) {
  AttentionConfig out;
  out.layer = config.layer;
  out.num_heads = static_cast<int32_t>(num_heads);
  out.num_kv_heads = static_cast<int32_t>(num_kv_heads);
  out.head_size = config.head_size;
  out.scale = config.scale;
  out.sliding_window = config.sliding_window;
  out.soft_cap = config.soft_cap;
  return out;
}

}  // namespace

SelfAttention::Heads::Heads(const BuildContext& build, const SelfAttentionConfig& config) {
  const int32_t ranks = build.world_size;
  const bool kv_fits = config.num_kv_heads % ranks == 0 || ranks % config.num_kv_heads == 0;
  if (config.num_heads % ranks != 0 || !kv_fits) {
    throw InvalidArgument(str("tensor_parallel_size ", ranks, " does not divide num_attention_heads ",
                              config.num_heads, " and num_key_value_heads ", config.num_kv_heads));
  }
  num = config.num_heads / ranks;
  first = build.rank * num;
  num_kv = std::max(config.num_kv_heads / ranks, 1);
  first_kv = int64_t{build.rank} * config.num_kv_heads / ranks;
}

SelfAttention::SelfAttention(BuildContext& build, const std::string& name, const SelfAttentionConfig& config)
    : heads_(build, config),
      head_size_(config.head_size),
      rotary_(config.rotary),
      attention_(build, attention_config(config, heads_.num, heads_.num_kv)) {
  const auto head_rows = [&](const char* part, int64_t total, int64_t first, int64_t count) {
    return LinearPart{name + part, total * head_size_, first * head_size_, count * head_size_};
  };
  qkv_ = Linear::column_parallel(build,
                                 {head_rows(".q_proj", config.num_heads, heads_.first, heads_.num),
                                  head_rows(".k_proj", config.num_kv_heads, heads_.first_kv, heads_.num_kv),
                                  head_rows(".v_proj", config.num_kv_heads, heads_.first_kv, heads_.num_kv)},
                                 config.hidden_size, config.qkv_bias);
  if (config.qk_norm) {
    q_norm_.emplace(build, name + ".q_norm", head_size_, *config.qk_norm);
    k_norm_.emplace(build, name + ".k_norm", head_size_, *config.qk_norm);
  }
  o_ = Linear::row_parallel(build, name + ".o_proj", config.hidden_size, config.num_heads * head_size_,
                            config.o_bias);
}

void SelfAttention::forward(const ForwardContext& ctx, TensorView out, TensorView x,
                            TensorView positions) const {
  const size_t mark = ctx.arena.mark();
  const int64_t T = x.shape[0];
  const TensorView qkv = ctx.arena.take(x.dtype, T, qkv_.num_outputs());
  const TensorView heads = ctx.arena.take(x.dtype, T, heads_.num * head_size_);
  qkv_.forward(ctx, qkv, x);
  const auto part = [&](int64_t first, int64_t count) {
    return qkv.columns(first * head_size_, count * head_size_).heads(count, head_size_);
  };
  const TensorView q = part(0, heads_.num);
  const TensorView k = part(heads_.num, heads_.num_kv);
  const TensorView v = part(heads_.num + heads_.num_kv, heads_.num_kv);
  if (q_norm_) {
    q_norm_->forward(ctx, q, q);
    k_norm_->forward(ctx, k, k);
  }
  attention_.forward(ctx, heads.heads(heads_.num, head_size_), q, k, v, *rotary_, positions);
  o_.forward(ctx, out, heads);
  ctx.arena.release(mark);
}

}  // namespace quire
