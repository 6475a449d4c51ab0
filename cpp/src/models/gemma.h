// What the Gemma models share.
#pragma once

#include "models/causal_lm.h"

namespace quire {

// A soft cap's bound; 0: none. An absent key is `otherwise`; null is none.
float read_soft_cap(const HfConfig& config, const char* key, double otherwise);

// The keys that all of them have, as transformers reads them: norms by 1 + weight, tied embeddings, heads of
// 256. Throws InvalidArgument for attention that is not causal.
TransformerConfig read_gemma_config(const HfConfig& config);

// Embeddings scaled by the square root of their size, logits under a soft cap.
class GemmaForCausalLM final : public CausalLM {
 public:
  GemmaForCausalLM(BuildContext& build, const TransformerConfig& config, float logits_soft_cap,
                   const LayerFactory& make_layer);

  void compute_logits(const ForwardContext& ctx, TensorView logits, TensorView hidden) const override;

 protected:
  void embed(const ForwardContext& ctx, TensorView out, const ModelInput& input) const override;

 private:
  float embedding_scale_, logits_soft_cap_;
};

}  // namespace quire
