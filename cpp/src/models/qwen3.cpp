// Qwen 3 (Yang et al., 2025): as Llama, with RMSNorm over every head of q and k, and windows on some layers.
#include "models/model_registry.h"
#include "models/pre_norm_layer.h"
#include "models/sliding_window.h"

namespace quire {
namespace {

std::unique_ptr<Model> make_qwen3(BuildContext& build, const HfConfig& hf_config) {
  // The head size is not tied to the hidden size.
  const auto config = TransformerConfig::read(hf_config, {.num_kv_heads = 32, .head_size = 128});
  GatedMLPConfig mlp = config.mlp();
  mlp.activation = read_activation(hf_config, "hidden_act", "silu");
  const auto windows = read_qwen_windows(hf_config, config.num_layers);
  const auto rotary = make_rotary_embedding(build, hf_config, config.head_size);
  return std::make_unique<CausalLM>(build, config, [&](int32_t layer) {
    SelfAttentionConfig attention = config.attention(layer, rotary);
    attention.qkv_bias = attention.o_bias = hf_config.get_bool("attention_bias", false);
    attention.qk_norm = norm_of_each_head(config.norm);
    attention.sliding_window = windows[static_cast<size_t>(layer)];
    return std::make_unique<PreNormLayer<>>(build, config.norm, attention, mlp);
  });
}

const bool registered_qwen3 = register_model("Qwen3ForCausalLM", make_qwen3);

}  // namespace
}  // namespace quire
