// Gemma 3's text model (Gemma Team, 2025): as Gemma 2, with norms of queries and keys instead of soft caps,
// and one full layer after every five with windows, which rotate by frequencies of their own. Of the models
// that read images, too.
#include <cmath>

#include "models/gemma.h"
#include "models/model_registry.h"
#include "models/sandwich_norm_layer.h"
#include "models/sliding_window.h"
#include "models/text_part.h"

namespace quire {
namespace {

std::unique_ptr<Model> make_gemma3(BuildContext& build, const HfConfig& hf_config) {
  const auto config = read_gemma_config(hf_config);
  GatedMLPConfig mlp = config.mlp();
  mlp.activation = read_activation(hf_config, "hidden_activation", "gelu_pytorch_tanh");
  const int32_t pattern = hf_config.get_int("sliding_window_pattern", 1, 4096, 6);
  const auto windows = read_layer_windows(hf_config, config.num_layers, read_window(hf_config, 4096),
                                          [&](int32_t layer) { return (layer + 1) % pattern != 0; });
  const auto global = make_rotary_embedding(build, hf_config, config.head_size,
                                            {.theta = 1e6, .layer_type = "full_attention"});
  const auto local = make_window_rotary(build, hf_config, config.head_size, "rope_local_base_freq", 1e4);
  const double scalar = hf_config.get_positive("query_pre_attn_scalar", 256.0);
  const float soft_cap = read_soft_cap(hf_config, "final_logit_softcapping", 0.0);
  return std::make_unique<GemmaForCausalLM>(build, config, soft_cap, [&](int32_t layer) {
    const int32_t window = windows[static_cast<size_t>(layer)];
    SelfAttentionConfig attention = config.attention(layer, window > 0 ? local : global);
    attention.scale = static_cast<float>(1.0 / std::sqrt(scalar));
    attention.sliding_window = window;
    attention.qkv_bias = attention.o_bias = hf_config.get_bool("attention_bias", false);
    attention.qk_norm = norm_of_each_head(config.norm);
    return std::make_unique<SandwichNormLayer>(build, config.norm, attention, mlp);
  });
}

// Its text_config leaves out what is as in the model of four billion parameters.
HfConfig adapt_gemma3_with_images(const HfConfig& config) {
  return text_part_config(config)
      .with_default("vocab_size", 262208)
      .with_default("num_attention_heads", 8)
      .with_default("num_key_value_heads", 4)
      .with_default("max_position_embeddings", 131072);
}

std::unique_ptr<Model> make_gemma3_of_text(BuildContext& build, const HfConfig& hf_config) {
  take_text_part(build);
  return make_gemma3(build, hf_config);
}

const bool registered_gemma3 = register_model("Gemma3ForCausalLM", make_gemma3);
const bool registered_gemma3_with_images =
    register_model("Gemma3ForConditionalGeneration", make_gemma3_of_text, adapt_gemma3_with_images);

}  // namespace
}  // namespace quire
