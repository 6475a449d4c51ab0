// Gemma 2 (Gemma Team, 2024): norms before and after each part, scores and logits under soft caps, windows on
// every other layer, embeddings scaled by the square root of their size.
#include <cmath>
#include <limits>

#include "models/gemma.h"
#include "models/model_registry.h"
#include "models/sandwich_norm_layer.h"
#include "models/sliding_window.h"

namespace quire {
namespace {

std::unique_ptr<Model> make_gemma2(BuildContext& build, const HfConfig& hf_config) {
  const auto config = read_gemma_config(hf_config);
  GatedMLPConfig mlp = config.mlp();
  mlp.activation = read_activation(hf_config, "hidden_activation", "gelu_pytorch_tanh");
  const auto windows = read_layer_windows(hf_config, config.num_layers, read_window(hf_config, 4096),
                                          [](int32_t layer) { return layer % 2 == 0; });
  const auto rotary = make_rotary_embedding(build, hf_config, config.head_size);
  const double scalar = hf_config.get_positive("query_pre_attn_scalar", 256.0);
  const float soft_cap = read_soft_cap(hf_config, "final_logit_softcapping", 30.0);
  return std::make_unique<GemmaForCausalLM>(build, config, soft_cap, [&](int32_t layer) {
    SelfAttentionConfig attention = config.attention(layer, rotary);
    attention.scale = static_cast<float>(1.0 / std::sqrt(scalar));
    attention.soft_cap = read_soft_cap(hf_config, "attn_logit_softcapping", 50.0);
    attention.sliding_window = windows[static_cast<size_t>(layer)];
    attention.qkv_bias = attention.o_bias = hf_config.get_bool("attention_bias", false);
    return std::make_unique<SandwichNormLayer>(build, config.norm, attention, mlp);
  });
}

const bool registered_gemma2 = register_model("Gemma2ForCausalLM", make_gemma2);

}  // namespace
}  // namespace quire
