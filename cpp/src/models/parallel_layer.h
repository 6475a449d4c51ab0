#pragma once

#include <optional>

#include "layers/gated_mlp.h"
#include "layers/wanted_rows.h"
#include "models/causal_lm.h"
#include "models/layer_names.h"
#include "quire/export.h"

namespace quire QUIRE_MODEL_API {

// Attention and feed-forward both read what the layer before left (Wang and Komatsuzaki, GPT-J, 2021): each
// behind a norm of its own, or both behind one, where names.post_attention_norm is empty.
template <typename FeedForward = GatedMLP>
class ParallelLayer final : public DecoderLayer {
 public:
  ParallelLayer(BuildContext& build, const NormConfig& norm, const SelfAttentionConfig& attention,
                const typename FeedForward::Config& feed_forward, const LayerNames& names)
      : input_norm_(build, names.of(names.input_norm), attention.hidden_size, norm),
        attention_(build, names.of(names.attention), attention),
        feed_forward_(build, names.of(names.feed_forward), feed_forward) {
    if (!names.post_attention_norm.empty())
      feed_forward_norm_.emplace(build, names.of(names.post_attention_norm), attention.hidden_size, norm);
  }

  const KVCacheSpec& kv_cache_spec() const override { return attention_.kv_cache_spec(); }

  void forward(const ForwardContext& ctx, ResidualStream& stream, const ModelInput& input) const override {
    const TensorView x = stream.normalized(ctx, input_norm_);
    TensorView y = feed_forward_norm_ ? stream.normalized(ctx, *feed_forward_norm_) : x;
    attention_.forward_part(ctx, stream.narrowed_addend(ctx), x, input.positions);
    if (stream.is_empty()) return;
    y = wanted_rows_of(ctx, y);
    feed_forward_.forward_part(ctx, y, y);
    ctx.ops.add(ctx.launch, stream.addend(), y);
    ctx.communicator.all_reduce_sum(ctx.launch, stream.addend());  // both at once
    stream.add();
  }

 private:
  Norm input_norm_;
  std::optional<Norm> feed_forward_norm_;
  SelfAttention attention_;
  FeedForward feed_forward_;
};

}  // namespace quire
