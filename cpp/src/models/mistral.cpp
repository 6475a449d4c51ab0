// Mistral (Jiang et al., 2023): as Llama, with a window on all layers where the config has one. Ministral has
// it on some (Mistral AI, 2024). Mistral Small 3 reads images too, of which the text model is taken.
#include "models/model_registry.h"
#include "models/pre_norm_layer.h"
#include "models/sliding_window.h"
#include "models/text_part.h"

namespace quire {
namespace {

std::unique_ptr<Model> make_mistral(BuildContext& build, const HfConfig& hf_config) {
  const auto config = TransformerConfig::read(hf_config, {.num_kv_heads = 8});
  GatedMLPConfig mlp = config.mlp();
  mlp.activation = read_activation(hf_config, "hidden_act", "silu");
  const auto windows = read_layer_windows(hf_config, config.num_layers, read_window(hf_config, 4096),
                                          [](int32_t) { return true; });
  const auto rotary = make_rotary_embedding(build, hf_config, config.head_size);
  return std::make_unique<CausalLM>(build, config, [&](int32_t layer) {
    SelfAttentionConfig attention = config.attention(layer, rotary);
    attention.sliding_window = windows[static_cast<size_t>(layer)];
    return std::make_unique<PreNormLayer<>>(build, config.norm, attention, mlp);
  });
}

std::unique_ptr<Model> make_mistral_of_text(BuildContext& build, const HfConfig& hf_config) {
  take_text_part(build);
  return make_mistral(build, hf_config);
}

const bool registered_mistral = register_model("MistralForCausalLM", make_mistral);
const bool registered_ministral = register_model("MinistralForCausalLM", make_mistral);
const bool registered_mistral3 =
    register_model("Mistral3ForConditionalGeneration", make_mistral_of_text, text_part_config);

}  // namespace
}  // namespace quire
