// GLM-4 (Team GLM, 2024), as of its releases of April 2025: norms before and after each part, half of each
// head rotated, by pairs of neighbours.
#include "models/model_registry.h"
#include "models/sandwich_norm_layer.h"

namespace quire {
namespace {

std::unique_ptr<Model> make_glm4(BuildContext& build, const HfConfig& hf_config) {
  const auto config =
      TransformerConfig::read(hf_config, {.norm_eps = 1.5625e-7, .num_kv_heads = 2, .head_size = 128});
  GatedMLPConfig mlp = config.mlp();
  mlp.activation = read_activation(hf_config, "hidden_act", "silu");
  mlp.gate_up = "gate_up_proj";
  auto angles =
      RotaryConfig::read(hf_config, config.head_size, build.max_model_len, {.partial_rotary_factor = 0.5});
  angles.interleaved = true;
  const auto rotary = std::make_shared<RotaryEmbedding>(build, angles);
  const SandwichNormNames names = {.after_attention = "post_self_attn_layernorm",
                                   .before_feed_forward = "post_attention_layernorm",
                                   .after_feed_forward = "post_mlp_layernorm"};
  return std::make_unique<CausalLM>(build, config, [&](int32_t layer) {
    SelfAttentionConfig attention = config.attention(layer, rotary);
    attention.qkv_bias = hf_config.get_bool("attention_bias", true);
    return std::make_unique<SandwichNormLayer>(build, config.norm, attention, mlp, names);
  });
}

const bool registered_glm4 = register_model("Glm4ForCausalLM", make_glm4);

}  // namespace
}  // namespace quire
