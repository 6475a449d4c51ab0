// Qwen 2 and 2.5 (Yang et al., 2024): as Llama, with biases on q, k and v, and windows on some layers.
#include "models/model_registry.h"
#include "models/pre_norm_layer.h"
#include "models/sliding_window.h"

namespace quire {
namespace {

std::unique_ptr<Model> make_qwen2(BuildContext& build, const HfConfig& hf_config) {
  const auto config = TransformerConfig::read(hf_config, {.num_kv_heads = 32});
  GatedMLPConfig mlp = config.mlp();
  mlp.activation = read_activation(hf_config, "hidden_act", "silu");
  const auto windows = read_qwen_windows(hf_config, config.num_layers);
  const auto rotary = make_rotary_embedding(build, hf_config, config.head_size);
  return std::make_unique<CausalLM>(build, config, [&](int32_t layer) {
    SelfAttentionConfig attention = config.attention(layer, rotary);
    attention.qkv_bias = true;
    attention.sliding_window = windows[static_cast<size_t>(layer)];
    return std::make_unique<PreNormLayer<>>(build, config.norm, attention, mlp);
  });
}

const bool registered_qwen2 = register_model("Qwen2ForCausalLM", make_qwen2);

}  // namespace
}  // namespace quire
