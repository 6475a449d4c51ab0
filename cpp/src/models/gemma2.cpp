// Gemma 2 (Gemma Team, 2024): norms before and after each part, scores and logits under soft caps, windows on
// every other layer, embeddings scaled by the square root of their size.
#include <cmath>
#include <limits>

#include "models/causal_lm.h"
#include "models/model_registry.h"
#include "models/sliding_window.h"
#include "util/half_float.h"

namespace quire {
namespace {

class Gemma2Layer final : public DecoderLayer {
 public:
  Gemma2Layer(BuildContext& build, const RMSNormConfig& norm, const SelfAttentionConfig& attention,
              const GatedMLPConfig& mlp)
      : input_norm_(make_norm(build, attention, norm, ".input_layernorm")),
        post_attention_norm_(make_norm(build, attention, norm, ".post_attention_layernorm")),
        pre_feedforward_norm_(make_norm(build, attention, norm, ".pre_feedforward_layernorm")),
        post_feedforward_norm_(make_norm(build, attention, norm, ".post_feedforward_layernorm")),
        attention_(build, layer_name(attention.layer) + ".self_attn", attention),
        mlp_(build, layer_name(attention.layer) + ".mlp", mlp) {}

  const KVCacheSpec& kv_cache_spec() const override { return attention_.kv_cache_spec(); }

  void forward(const ForwardContext& ctx, ResidualStream& stream, const ModelInput& input) const override {
    const TensorView out = stream.addend();
    attention_.forward(ctx, out, stream.normalized(ctx, input_norm_), input.positions);
    post_attention_norm_.forward(ctx, out, out);
    stream.add();
    mlp_.forward(ctx, out, stream.normalized(ctx, pre_feedforward_norm_));
    post_feedforward_norm_.forward(ctx, out, out);
    stream.add();
  }

 private:
  static RMSNorm make_norm(BuildContext& build, const SelfAttentionConfig& attention,
                           const RMSNormConfig& norm, const char* name) {
    return {build, layer_name(attention.layer) + name, attention.hidden_size, norm};
  }

  RMSNorm input_norm_, post_attention_norm_, pre_feedforward_norm_, post_feedforward_norm_;
  SelfAttention attention_;
  GatedMLP mlp_;
};

class Gemma2ForCausalLM final : public CausalLM {
 public:
  Gemma2ForCausalLM(BuildContext& build, const HfConfig& hf_config, const TransformerConfig& config,
                    const LayerFactory& make_layer)
      : CausalLM(build, config, make_layer),
        embedding_scale_(static_cast<float>(std::sqrt(config.hidden_size))),
        logits_soft_cap_(read_soft_cap(hf_config, "final_logit_softcapping", 30.0)) {
    // transformers has the factor in the model's dtype.
    if (build.dtype == DType::kBFloat16) embedding_scale_ = bf16_to_float(float_to_bf16(embedding_scale_));
    if (build.dtype == DType::kFloat16) embedding_scale_ = fp16_to_float(float_to_fp16(embedding_scale_));
  }

  void compute_logits(const ForwardContext& ctx, TensorView logits, TensorView hidden) const override {
    CausalLM::compute_logits(ctx, logits, hidden);
    if (logits_soft_cap_ > 0) ctx.ops.soft_cap(ctx.launch, logits, logits_soft_cap_);
  }

  // 0: none. An absent key is the default of transformers; null is none.
  static float read_soft_cap(const HfConfig& config, const char* key, double otherwise) {
    if (config.is_null(key)) return 0.0F;
    return static_cast<float>(config.get_positive(key, otherwise));
  }

 protected:
  void embed(const ForwardContext& ctx, TensorView out, TensorView input_ids) const override {
    CausalLM::embed(ctx, out, input_ids);
    ctx.ops.scale(ctx.launch, out, embedding_scale_);
  }

 private:
  float embedding_scale_, logits_soft_cap_;
};

std::unique_ptr<Model> make_gemma2(BuildContext& build, const HfConfig& hf_config) {
  constexpr int32_t kMaxWindow = std::numeric_limits<int32_t>::max();
  auto config = TransformerConfig::read(hf_config);
  config.head_size = hf_config.get_int("head_dim", 1, 65536, 256);
  config.norm.weight_offset = 1.0F;
  config.tie_word_embeddings = hf_config.get_bool("tie_word_embeddings", true);
  if (hf_config.get_bool("use_bidirectional_attention", false)) {
    hf_config.fail("'use_bidirectional_attention' true is not supported: attention is causal");
  }
  GatedMLPConfig mlp = config.mlp();
  mlp.activation = read_activation(hf_config, "hidden_activation", "gelu_pytorch_tanh");
  const int32_t window =
      hf_config.is_null("sliding_window") ? 0 : hf_config.get_int("sliding_window", 1, kMaxWindow, 4096);
  const auto windows =
      read_layer_windows(hf_config, config.num_layers, window, [](int32_t layer) { return layer % 2 == 0; });
  const auto rotary = make_rotary_embedding(build, hf_config, config.head_size);
  const double scalar = hf_config.get_positive("query_pre_attn_scalar", 256.0);
  return std::make_unique<Gemma2ForCausalLM>(build, hf_config, config, [&](int32_t layer) {
    SelfAttentionConfig attention = config.attention(layer, rotary);
    attention.scale = static_cast<float>(1.0 / std::sqrt(scalar));
    attention.soft_cap = Gemma2ForCausalLM::read_soft_cap(hf_config, "attn_logit_softcapping", 50.0);
    attention.sliding_window = windows[static_cast<size_t>(layer)];
    attention.qkv_bias = attention.o_bias = hf_config.get_bool("attention_bias", false);
    return std::make_unique<Gemma2Layer>(build, config.norm, attention, mlp);
  });
}

const bool registered_gemma2 = register_model("Gemma2ForCausalLM", make_gemma2);

}  // namespace
}  // namespace quire
