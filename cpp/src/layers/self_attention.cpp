#include "layers/self_attention.h"

#include "layers/wanted_rows.h"
#include "util/check.h"

namespace quire {
namespace {

AttentionConfig attention_config(BuildContext& build, const std::string& name,
                                 const SelfAttentionConfig& config, const HeadShare& heads) {
  AttentionConfig out;
  out.layer = config.layer;
  out.num_heads = static_cast<int32_t>(heads.num);
  out.num_kv_heads = static_cast<int32_t>(heads.num_kv);
  out.head_size = config.head_size;
  out.scale = config.scale;
  out.sliding_window = config.sliding_window;
  out.soft_cap = config.soft_cap;
  if (!config.alibi_slopes.empty()) {
    const auto first = config.alibi_slopes.begin() + heads.first;
    out.alibi_slopes.assign(first, first + heads.num);
  }
  if (!config.sinks.empty()) {
    const TensorView all = build.checkpoint.take(name + "." + config.sinks, {heads.total});
    std::byte* sinks = build.arena.allocate(static_cast<size_t>(heads.num) * sizeof(float));
    build.loader.load(sinks, DType::kFloat32, slice_rows(all, heads.first, heads.num));
    out.sinks = reinterpret_cast<const float*>(sinks);
  }
  return out;
}

// The rows of this rank's queries, then keys, then values.
std::vector<LinearPart> qkv_parts(const std::string& name, const SelfAttentionConfig& config,
                                  const HeadShare& heads) {
  const int64_t size = heads.head_size;
  const int64_t all = heads.total + 2 * heads.total_kv;  // heads of one tensor that has them all
  const std::string one = name + "." + config.qkv;
  // A run of heads: `first` counts within a tensor of `total`.
  const auto run = [&](const std::string& tensor, int64_t total, int64_t first, int64_t count) {
    return LinearPart{tensor, total * size, first * size, count * size, config.order};
  };
  switch (config.qkv_rows) {
    case QkvRows::kSeparate: break;
    case QkvRows::kStacked:
      return {run(one, all, heads.first, heads.num),
              run(one, all, heads.total + heads.first_kv, heads.num_kv),
              run(one, all, heads.total + heads.total_kv + heads.first_kv, heads.num_kv)};
    case QkvRows::kByHead: {
      QUIRE_CHECK(heads.total == heads.total_kv);
      std::vector<LinearPart> parts;
      for (int64_t part = 0; part < 3; ++part) {
        for (int64_t head = heads.first; head < heads.first + heads.num; ++head)
          parts.push_back(run(one, all, 3 * head + part, 1));
      }
      return parts;
    }
  }
  return {run(name + ".q_proj", heads.total, heads.first, heads.num),
          run(name + ".k_proj", heads.total_kv, heads.first_kv, heads.num_kv),
          run(name + ".v_proj", heads.total_kv, heads.first_kv, heads.num_kv)};
}

}  // namespace

SelfAttention::SelfAttention(BuildContext& build, const std::string& name, const SelfAttentionConfig& config)
    : heads_(build, config.num_heads, config.num_kv_heads, config.head_size),
      rotary_(config.rotary),
      attention_(build, attention_config(build, name, config, heads_)) {
  qkv_ = Linear::column_parallel(build, qkv_parts(name, config, heads_), config.hidden_size, config.qkv_bias);
  if (config.qk_norm) qk_norm_ = config.qk_norm(build, name, heads_);
  o_ = Linear::row_parallel(build, name + "." + config.o, config.hidden_size,
                            int64_t{config.num_heads} * config.head_size, config.o_bias, config.order);
}

void SelfAttention::forward(const ForwardContext& ctx, TensorView out, TensorView x,
                            TensorView positions) const {
  forward_part(ctx, out, x, positions);
  if (out.shape[0] > 0) ctx.communicator.all_reduce_sum(ctx.launch, out);
}

bool SelfAttention::forward_add(const ForwardContext& ctx, const Addition& to, TensorView x,
                                TensorView positions) const {
  bool is_added = true;  // nothing, to no rows
  attend(ctx, to.out.shape[0], x, positions,
         [&](TensorView heads) { is_added = o_.forward_add(ctx, to, heads); });
  return is_added;
}

void SelfAttention::forward_part(const ForwardContext& ctx, TensorView out, TensorView x,
                                 TensorView positions) const {
  attend(ctx, out.shape[0], x, positions, [&](TensorView heads) { o_.forward_part(ctx, out, heads); });
}

template <typename F>
void SelfAttention::attend(const ForwardContext& ctx, int64_t R, TensorView x, TensorView positions,
                           F project) const {
  const size_t mark = ctx.arena.mark();
  const int64_t T = x.shape[0], size = heads_.head_size;
  QUIRE_CHECK(R == T || (ctx.wanted_rows && R == ctx.wanted_rows->shape[0]), "attention of ", T, " rows to ",
              R);
  const TensorView qkv = ctx.arena.take(x.dtype, T, qkv_.num_outputs());
  const TensorView heads = ctx.arena.take(x.dtype, R > 0 ? T : 0, heads_.num * size);
  qkv_.forward(ctx, qkv, x);
  const auto part = [&](int64_t first, int64_t count) {
    return qkv.columns(first * size, count * size).heads(count, size);
  };
  TensorView q = part(0, heads_.num);
  TensorView k = part(heads_.num, heads_.num_kv);
  const TensorView v = part(heads_.num + heads_.num_kv, heads_.num_kv);
  const HeadNorms* norms = qk_norm_ && rotary_ ? qk_norm_->of_heads() : nullptr;
  if (qk_norm_ && norms == nullptr) qk_norm_->forward(ctx, q, k);
  attention_.forward(ctx, heads.heads(heads_.num, size), q, k, v, rotary_.get(), norms, positions);
  if (R > 0) project(R < T ? wanted_rows_of(ctx, heads) : heads);
  ctx.arena.release(mark);
}

}  // namespace quire
