#include "models/gemma.h"

#include <cmath>

#include "util/half_float.h"

namespace quire {

float read_soft_cap(const HfConfig& config, const char* key, double otherwise) {
  if (config.is_null(key)) return 0.0F;
  if (otherwise == 0 && !config.has(key)) return 0.0F;
  return static_cast<float>(config.get_positive(key, otherwise));
}

TransformerConfig read_gemma_config(const HfConfig& hf_config) {
  auto config =
      TransformerConfig::read(hf_config, {.num_kv_heads = 4, .head_size = 256, .tie_word_embeddings = true});
  config.norm.weight_offset = 1.0F;
  if (hf_config.get_bool("use_bidirectional_attention", false)) {
    hf_config.fail("'use_bidirectional_attention' true is not supported: attention is causal");
  }
  return config;
}

GemmaForCausalLM::GemmaForCausalLM(BuildContext& build, const TransformerConfig& config,
                                   float logits_soft_cap, const LayerFactory& make_layer)
    : CausalLM(build, config, make_layer),
      embedding_scale_(static_cast<float>(std::sqrt(config.hidden_size))),
      logits_soft_cap_(logits_soft_cap) {
  // transformers has the factor in the model's dtype.
  if (build.dtype == DType::kBFloat16) embedding_scale_ = bf16_to_float(float_to_bf16(embedding_scale_));
  if (build.dtype == DType::kFloat16) embedding_scale_ = fp16_to_float(float_to_fp16(embedding_scale_));
}

void GemmaForCausalLM::compute_logits(const ForwardContext& ctx, TensorView logits, TensorView hidden) const {
  CausalLM::compute_logits(ctx, logits, hidden);
  if (logits_soft_cap_ > 0) ctx.ops.soft_cap(ctx.launch, logits, logits_soft_cap_);
}

void GemmaForCausalLM::embed(const ForwardContext& ctx, TensorView out, const ModelInput& input) const {
  CausalLM::embed(ctx, out, input);
  ctx.ops.scale(ctx.launch, out, embedding_scale_);
}

}  // namespace quire
