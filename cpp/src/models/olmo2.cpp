// OLMo 2 (Team OLMo, 2024) and 3 (2025): norms after attention and feed-forward instead of before them, and
// over all heads of q and k. OLMo 3 has windows on three of four layers.
#include "models/causal_lm.h"
#include "models/model_registry.h"
#include "models/sliding_window.h"

namespace quire {
namespace {

class Olmo2Layer final : public DecoderLayer {
 public:
  Olmo2Layer(BuildContext& build, const NormConfig& norm, const SelfAttentionConfig& attention,
             const GatedMLPConfig& mlp)
      : post_attention_norm_(build, layer_name(attention.layer) + ".post_attention_layernorm",
                             attention.hidden_size, norm),
        post_feedforward_norm_(build, layer_name(attention.layer) + ".post_feedforward_layernorm",
                               attention.hidden_size, norm),
        attention_(build, layer_name(attention.layer) + ".self_attn", attention),
        mlp_(build, layer_name(attention.layer) + ".mlp", mlp) {}

  const KVCacheSpec& kv_cache_spec() const override { return attention_.kv_cache_spec(); }

  void forward(const ForwardContext& ctx, ResidualStream& stream, const ModelInput& input) const override {
    const TensorView x = stream.sum(ctx);
    attention_.forward(ctx, stream.narrowed_addend(ctx), x, input.positions);
    if (stream.is_empty()) return;
    stream.add_normalized(post_attention_norm_);
    mlp_.forward(ctx, stream.addend(), stream.sum(ctx));
    stream.add_normalized(post_feedforward_norm_);
  }

 private:
  Norm post_attention_norm_, post_feedforward_norm_;
  SelfAttention attention_;
  GatedMLP mlp_;
};

std::unique_ptr<Model> make_olmo(BuildContext& build, const HfConfig& hf_config,
                                 const std::vector<int32_t>& windows,
                                 const std::shared_ptr<const RotaryEmbedding>& global,
                                 const std::shared_ptr<const RotaryEmbedding>& local) {
  const auto config = TransformerConfig::read(hf_config, {.norm_eps = 1e-5});
  GatedMLPConfig mlp = config.mlp();
  mlp.activation = read_activation(hf_config, "hidden_act", "silu");
  return std::make_unique<CausalLM>(build, config, [&](int32_t layer) {
    const int32_t window = windows[static_cast<size_t>(layer)];
    SelfAttentionConfig attention = config.attention(layer, window > 0 ? local : global);
    attention.qkv_bias = attention.o_bias = hf_config.get_bool("attention_bias", false);
    attention.qk_norm = norm_of_all_heads(config.norm);
    attention.sliding_window = window;
    return std::make_unique<Olmo2Layer>(build, config.norm, attention, mlp);
  });
}

std::unique_ptr<Model> make_olmo2(BuildContext& build, const HfConfig& hf_config) {
  const auto config = TransformerConfig::read(hf_config);
  const auto rotary = make_rotary_embedding(build, hf_config, config.head_size);
  const std::vector<int32_t> no_windows(static_cast<size_t>(config.num_layers));
  return make_olmo(build, hf_config, no_windows, rotary, rotary);
}

std::unique_ptr<Model> make_olmo3(BuildContext& build, const HfConfig& hf_config) {
  const auto config = TransformerConfig::read(hf_config);
  const auto windows = read_layer_windows(hf_config, config.num_layers, read_window(hf_config, 4096),
                                          [](int32_t layer) { return (layer + 1) % 4 != 0; });
  constexpr double kTheta = 5e5;
  const auto global = make_rotary_embedding(build, hf_config, config.head_size,
                                            {.theta = kTheta, .layer_type = "full_attention"});
  const auto local = make_window_rotary(build, hf_config, config.head_size, "rope_theta", kTheta);
  return make_olmo(build, hf_config, windows, global, local);
}

const bool registered_olmo2 = register_model("Olmo2ForCausalLM", make_olmo2);
const bool registered_olmo3 = register_model("Olmo3ForCausalLM", make_olmo3);

}  // namespace
}  // namespace quire
