#pragma once

#include "models/causal_lm.h"

namespace quire {

// The layer of Llama and many after it: attention and feed-forward, each behind a norm, each added.
class PreNormLayer final : public DecoderLayer {
 public:
  // "<layer_name>.input_layernorm", self_attn, post_attention_layernorm, mlp
  PreNormLayer(BuildContext& build, const RMSNormConfig& norm, const SelfAttentionConfig& attention,
               const GatedMLPConfig& mlp);

  const KVCacheSpec& kv_cache_spec() const override { return attention_.kv_cache_spec(); }
  void forward(const ForwardContext& ctx, ResidualStream& stream, const ModelInput& input) const override;

 private:
  RMSNorm input_norm_, post_attention_norm_;
  SelfAttention attention_;
  GatedMLP mlp_;
};

}  // namespace quire
