// Phi 3, 3.5 and 4 (Abdin et al., 2024): as Llama, with q, k and v in one tensor, gate and up in another, and
// heads that may be rotated in part.
#include "models/model_registry.h"
#include "models/pre_norm_layer.h"
#include "models/sliding_window.h"

namespace quire {
namespace {

std::unique_ptr<Model> make_phi3(BuildContext& build, const HfConfig& hf_config) {
  const auto config = TransformerConfig::read(hf_config, {.norm_eps = 1e-5});
  GatedMLPConfig mlp = config.mlp();
  mlp.activation = read_activation(hf_config, "hidden_act", "silu");
  mlp.gate_up = "gate_up_proj";
  const int32_t window = read_window(hf_config, 0);
  const auto rotary = make_rotary_embedding(
      build, hf_config, config.head_size,
      {.partial_rotary_factor = 1.0, .original_max_positions = 4096, .yarn_is_longrope = true});
  return std::make_unique<CausalLM>(build, config, [&](int32_t layer) {
    SelfAttentionConfig attention = config.attention(layer, rotary);
    attention.sliding_window = window;
    attention.qkv_rows = QkvRows::kStacked;
    return std::make_unique<PreNormLayer<>>(build, config.norm, attention, mlp);
  });
}

const bool registered_phi3 = register_model("Phi3ForCausalLM", make_phi3);

}  // namespace
}  // namespace quire
