// SmolLM 3 (Hugging Face, 2025): as Llama, but every fourth layer knows no positions (NoPE; Yang et al.,
// 2025).
#include "models/model_registry.h"
#include "models/pre_norm_layer.h"
#include "models/sliding_window.h"

namespace quire {
namespace {

// Per layer whether queries and keys are rotated.
std::vector<bool> read_rotated_layers(const HfConfig& config, int32_t num_layers) {
  const int32_t interval = config.get_int("no_rope_layer_interval", 1, 4096, 4);
  const auto given = config.get_ints("no_rope_layers", 0, 1);
  if (!given.empty() && given.size() < static_cast<size_t>(num_layers)) {
    config.fail("'no_rope_layers' has " + std::to_string(given.size()) + " entries, 'num_hidden_layers' is " +
                std::to_string(num_layers));
  }
  std::vector<bool> rotated;
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    rotated.push_back(given.empty() ? (layer + 1) % interval != 0 : given[static_cast<size_t>(layer)] == 1);
  }
  return rotated;
}

std::unique_ptr<Model> make_smollm3(BuildContext& build, const HfConfig& hf_config) {
  const auto config = TransformerConfig::read(hf_config, {.num_kv_heads = 4, .tie_word_embeddings = true});
  GatedMLPConfig mlp = config.mlp();
  mlp.activation = read_activation(hf_config, "hidden_act", "silu");
  mlp.bias = hf_config.get_bool("mlp_bias", false);
  const auto rotated = read_rotated_layers(hf_config, config.num_layers);
  const int32_t window = hf_config.get_bool("use_sliding_window", false) ? read_window(hf_config, 0) : 0;
  const auto windows = read_layer_windows(hf_config, config.num_layers, window, [&](int32_t layer) {
    return !rotated[static_cast<size_t>(layer)];
  });
  const auto rotary = make_rotary_embedding(build, hf_config, config.head_size, {.theta = 2e6});
  return std::make_unique<CausalLM>(build, config, [&](int32_t layer) {
    const auto index = static_cast<size_t>(layer);
    SelfAttentionConfig attention = config.attention(layer, rotated[index] ? rotary : nullptr);
    attention.qkv_bias = attention.o_bias = hf_config.get_bool("attention_bias", false);
    attention.sliding_window = windows[index];
    return std::make_unique<PreNormLayer<>>(build, config.norm, attention, mlp);
  });
}

const bool registered_smollm3 = register_model("SmolLM3ForCausalLM", make_smollm3);

}  // namespace
}  // namespace quire
