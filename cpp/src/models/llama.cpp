// Llama 2 and 3 (Touvron et al., 2023): biases only where the config asks for them.
#include "models/model_registry.h"
#include "models/pre_norm_layer.h"

namespace quire {
namespace {

std::unique_ptr<Model> make_llama(BuildContext& build, const HfConfig& hf_config) {
  const auto config = TransformerConfig::read(hf_config);
  GatedMLPConfig mlp = config.mlp();
  mlp.activation = read_activation(hf_config, "hidden_act", "silu");
  mlp.bias = hf_config.get_bool("mlp_bias", false);
  const auto rotary = make_rotary_embedding(build, hf_config, config.head_size);
  return std::make_unique<CausalLM>(build, config, [&](int32_t layer) {
    SelfAttentionConfig attention = config.attention(layer, rotary);
    attention.qkv_bias = attention.o_bias = hf_config.get_bool("attention_bias", false);
    return std::make_unique<PreNormLayer<>>(build, config.norm, attention, mlp);
  });
}

const bool registered_llama = register_model("LlamaForCausalLM", make_llama);

}  // namespace
}  // namespace quire
