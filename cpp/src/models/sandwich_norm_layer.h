#pragma once

#include <string>

#include "layers/gated_mlp.h"
#include "models/causal_lm.h"
#include "quire/export.h"

namespace quire QUIRE_MODEL_API {

// What a checkpoint calls the norms, in the order of a forward pass.
struct SandwichNormNames {
  std::string before_attention = "input_layernorm";
  std::string after_attention = "post_attention_layernorm";
  std::string before_feed_forward = "pre_feedforward_layernorm";
  std::string after_feed_forward = "post_feedforward_layernorm";
};

// Attention and feed-forward, each between two norms (Gemma 2, GLM-4): what is added is normed too.
class SandwichNormLayer final : public DecoderLayer {
 public:
  // "<layer_name>.<norm>" of each of `names`, self_attn, mlp
  SandwichNormLayer(BuildContext& build, const NormConfig& norm, const SelfAttentionConfig& attention,
                    const GatedMLPConfig& mlp, const SandwichNormNames& names = {});

  const KVCacheSpec& kv_cache_spec() const override { return attention_.kv_cache_spec(); }
  void forward(const ForwardContext& ctx, ResidualStream& stream, const ModelInput& input) const override;

 private:
  Norm before_attention_, after_attention_, before_feed_forward_, after_feed_forward_;
  SelfAttention attention_;
  GatedMLP mlp_;
};

}  // namespace quire
