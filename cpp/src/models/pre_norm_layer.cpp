#include "models/pre_norm_layer.h"

namespace quire {

PreNormLayer::PreNormLayer(BuildContext& build, const RMSNormConfig& norm,
                           const SelfAttentionConfig& attention, const GatedMLPConfig& mlp)
    : input_norm_(build, layer_name(attention.layer) + ".input_layernorm", attention.hidden_size, norm),
      post_attention_norm_(build, layer_name(attention.layer) + ".post_attention_layernorm",
                           attention.hidden_size, norm),
      attention_(build, layer_name(attention.layer) + ".self_attn", attention),
      mlp_(build, layer_name(attention.layer) + ".mlp", mlp) {}

void PreNormLayer::forward(const ForwardContext& ctx, ResidualStream& stream, const ModelInput& input) const {
  attention_.forward(ctx, stream.addend(), stream.normalized(ctx, input_norm_), input.positions);
  stream.add();
  mlp_.forward(ctx, stream.addend(), stream.normalized(ctx, post_attention_norm_));
  stream.add();
}

}  // namespace quire
