#pragma once

#include "layers/gated_mlp.h"
#include "models/causal_lm.h"
#include "models/layer_names.h"
#include "quire/export.h"

namespace quire QUIRE_MODEL_API {

// The layer of Llama and many after it: attention and feed-forward, each behind a norm, each added.
template <typename FeedForward = GatedMLP>
class PreNormLayer final : public DecoderLayer {
 public:
  PreNormLayer(BuildContext& build, const NormConfig& norm, const SelfAttentionConfig& attention,
               const typename FeedForward::Config& feed_forward, const LayerNames& names)
      : input_norm_(build, names.of(names.input_norm), attention.hidden_size, norm),
        post_attention_norm_(build, names.of(names.post_attention_norm), attention.hidden_size, norm),
        attention_(build, names.of(names.attention), attention),
        feed_forward_(build, names.of(names.feed_forward), feed_forward) {}
  // Under "model.layers".
  PreNormLayer(BuildContext& build, const NormConfig& norm, const SelfAttentionConfig& attention,
               const typename FeedForward::Config& feed_forward)
      : PreNormLayer(build, norm, attention, feed_forward, {.layer = layer_name(attention.layer)}) {}

  const KVCacheSpec& kv_cache_spec() const override { return attention_.kv_cache_spec(); }

  void forward(const ForwardContext& ctx, ResidualStream& stream, const ModelInput& input) const override {
    const TensorView x = stream.normalized(ctx, input_norm_);
    stream.add(attention_.forward_add(ctx, stream.narrowed_addition(ctx), x, input.positions));
    if (stream.is_empty()) return;
    const TensorView y = stream.normalized(ctx, post_attention_norm_);
    stream.add(feed_forward_.forward_add(ctx, stream.addition(), y));
  }

 private:
  Norm input_norm_, post_attention_norm_;
  SelfAttention attention_;
  FeedForward feed_forward_;
};

}  // namespace quire
