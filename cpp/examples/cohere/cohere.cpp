// Command R (Cohere, 2024), as a library that an engine loads: attention and feed-forward read the same norm
// and are added together, norms have no bias, heads are rotated by pairs of neighbours, logits are scaled.
#include "layers/gated_mlp.h"
#include "layers/wanted_rows.h"
#include "models/causal_lm.h"
#include "models/model_plugin.h"

namespace quire {
namespace {

class CohereLayer final : public DecoderLayer {
 public:
  CohereLayer(BuildContext& build, const NormConfig& norm, const SelfAttentionConfig& attention,
              const GatedMLPConfig& mlp)
      : input_norm_(build, layer_name(attention.layer) + ".input_layernorm", attention.hidden_size, norm),
        attention_(build, layer_name(attention.layer) + ".self_attn", attention),
        mlp_(build, layer_name(attention.layer) + ".mlp", mlp) {}

  const KVCacheSpec& kv_cache_spec() const override { return attention_.kv_cache_spec(); }

  void forward(const ForwardContext& ctx, ResidualStream& stream, const ModelInput& input) const override {
    const TensorView x = stream.normalized(ctx, input_norm_);
    attention_.forward(ctx, stream.narrowed_addend(ctx), x, input.positions);
    if (stream.is_empty()) return;
    const TensorView y = wanted_rows_of(ctx, x);
    mlp_.forward(ctx, y, y);
    ctx.ops.add(ctx.launch, stream.addend(), y);
    stream.add();
  }

 private:
  Norm input_norm_;
  SelfAttention attention_;
  GatedMLP mlp_;
};

class CohereForCausalLM final : public CausalLM {
 public:
  CohereForCausalLM(BuildContext& build, const HfConfig& hf_config, const TransformerConfig& config,
                    const LayerFactory& make_layer)
      : CausalLM(build, config, make_layer),
        logit_scale_(static_cast<float>(hf_config.get_positive("logit_scale", 0.0625))) {}

  void compute_logits(const ForwardContext& ctx, TensorView logits, TensorView hidden) const override {
    CausalLM::compute_logits(ctx, logits, hidden);
    ctx.ops.scale(ctx.launch, logits, logit_scale_);
  }

 private:
  float logit_scale_;
};

std::unique_ptr<Model> make_cohere(BuildContext& build, const HfConfig& hf_config) {
  auto config = TransformerConfig::read(hf_config);
  config.norm = {
      .kind = NormConfig::Kind::kLayer, .eps = hf_config.get_positive("layer_norm_eps", 1e-5), .bias = false};
  config.tie_word_embeddings = hf_config.get_bool("tie_word_embeddings", true);
  if (hf_config.get_bool("use_qk_norm", false)) {
    hf_config.fail("'use_qk_norm' true is not supported: norms of queries and keys are another model's");
  }
  GatedMLPConfig mlp = config.mlp();
  mlp.activation = read_activation(hf_config, "hidden_act", "silu");
  RotaryConfig angles = RotaryConfig::read(hf_config, config.head_size, build.max_model_len);
  angles.interleaved = true;
  const auto rotary = std::make_shared<RotaryEmbedding>(build, angles);
  return std::make_unique<CohereForCausalLM>(build, hf_config, config, [&](int32_t layer) {
    SelfAttentionConfig attention = config.attention(layer, rotary);
    attention.qkv_bias = attention.o_bias = hf_config.get_bool("attention_bias", false);
    return std::make_unique<CohereLayer>(build, config.norm, attention, mlp);
  });
}

}  // namespace
}  // namespace quire

QUIRE_MODEL_PLUGIN(models) { models.add("CohereForCausalLM", quire::make_cohere); }
