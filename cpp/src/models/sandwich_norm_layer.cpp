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
  const TensorView out = stream.addend();
  attention_.forward(ctx, out, stream.normalized(ctx, before_attention_), input.positions);
  after_attention_.forward(ctx, out, out);
  stream.add();
  mlp_.forward(ctx, out, stream.normalized(ctx, before_feed_forward_));
  after_feed_forward_.forward(ctx, out, out);
  stream.add();
}

}  // namespace quire
