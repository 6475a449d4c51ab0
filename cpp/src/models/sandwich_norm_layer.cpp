#include "models/sandwich_norm_layer.h"

namespace quire {
namespace {

Norm make_norm(BuildContext& build, const SelfAttentionConfig& attention, const NormConfig& norm,
               const std::string& name) {
  return {build, layer_name(attention.layer) + "." + name, attention.hidden_size, norm};
}

}  // namespace

SandwichNormLayer::SandwichNormLayer(BuildContext& build, const NormConfig& norm,
                                     const SelfAttentionConfig& attention, const GatedMLPConfig& mlp,
                                     const SandwichNormNames& names)
    : before_attention_(make_norm(build, attention, norm, names.before_attention)),
      after_attention_(make_norm(build, attention, norm, names.after_attention)),
      before_feed_forward_(make_norm(build, attention, norm, names.before_feed_forward)),
      after_feed_forward_(make_norm(build, attention, norm, names.after_feed_forward)),
      attention_(build, layer_name(attention.layer) + ".self_attn", attention),
      mlp_(build, layer_name(attention.layer) + ".mlp", mlp) {}

void SandwichNormLayer::forward(const ForwardContext& ctx, ResidualStream& stream,
                                const ModelInput& input) const {
  const TensorView x = stream.normalized(ctx, before_attention_);
  attention_.forward(ctx, stream.narrowed_addend(ctx), x, input.positions);
  if (stream.is_empty()) return;
  stream.add_normalized(after_attention_);
  mlp_.forward(ctx, stream.addend(), stream.normalized(ctx, before_feed_forward_));
  stream.add_normalized(after_feed_forward_);
}

}  // namespace quire
