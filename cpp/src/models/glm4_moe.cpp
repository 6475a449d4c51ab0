// GLM-4.5 and 4.6 (GLM-4.5 Team, 2025): the first layers are dense, the others have a mixture of experts
// whose router scores by sigmoids, chooses by scores with a correction, and leaves one expert to every token.
#include "layers/moe.h"
#include "models/model_registry.h"
#include "models/pre_norm_layer.h"

namespace quire {
namespace {

HfConfig adapt_glm4_moe(const HfConfig& config) {
  return config.with_alias("n_routed_experts", "num_local_experts");
}

MoEConfig read_glm4_moe(const HfConfig& hf_config, const TransformerConfig& config) {
  MoEConfig moe;
  moe.hidden_size = config.hidden_size;
  moe.intermediate_size = hf_config.get_int("moe_intermediate_size", 1, 1 << 24);
  moe.num_experts = hf_config.get_int("n_routed_experts", 1, 1 << 16);
  moe.top_k = hf_config.get_int("num_experts_per_tok", 1, 1 << 16, 8);
  moe.activation = read_activation(hf_config, "hidden_act", "silu");
  moe.scoring = ExpertScoring::kSigmoid;
  moe.renormalize = hf_config.get_bool("norm_topk_prob", true);
  moe.routed_scale = static_cast<float>(hf_config.get_positive("routed_scaling_factor", 1.0));
  moe.num_groups = hf_config.get_int("n_group", 1, 1 << 16, 1);
  moe.num_top_groups = hf_config.get_int("topk_group", 1, 1 << 16, 1);
  moe.correction = "gate.e_score_correction_bias";
  moe.experts = experts_by_number(moe.num_experts, config.hidden_size, moe.intermediate_size, "gate_proj",
                                  "up_proj", "down_proj");
  moe.shared = "shared_experts";
  moe.shared_intermediate_size = moe.intermediate_size * hf_config.get_int("n_shared_experts", 1, 64, 1);
  moe.check(hf_config);
  return moe;
}

std::unique_ptr<Model> make_glm4_moe(BuildContext& build, const HfConfig& hf_config) {
  const auto config = TransformerConfig::read(hf_config, {.norm_eps = 1e-5, .num_kv_heads = 8});
  const MoEConfig moe = read_glm4_moe(hf_config, config);
  GatedMLPConfig mlp = config.mlp();
  mlp.activation = moe.activation;
  const int32_t num_dense = hf_config.get_int("first_k_dense_replace", 0, 1 << 16, 1);
  const auto rotary =
      make_rotary_embedding(build, hf_config, config.head_size, {.partial_rotary_factor = 0.5});
  // Behind the last layer some checkpoints have those that draft.
  for (int32_t layer = config.num_layers; layer < config.num_layers + 4; ++layer)
    build.ignored_parts.push_back(layer_name(layer) + ".");
  return std::make_unique<CausalLM>(build, config, [&](int32_t layer) -> std::unique_ptr<DecoderLayer> {
    SelfAttentionConfig attention = config.attention(layer, rotary);
    attention.qkv_bias = hf_config.get_bool("attention_bias", false);
    if (hf_config.get_bool("use_qk_norm", false)) attention.qk_norm = norm_of_each_head(config.norm);
    if (layer < num_dense) return std::make_unique<PreNormLayer<>>(build, config.norm, attention, mlp);
    return std::make_unique<PreNormLayer<MoE>>(build, config.norm, attention, moe);
  });
}

const bool registered_glm4_moe = register_model("Glm4MoeForCausalLM", make_glm4_moe, adapt_glm4_moe);

}  // namespace
}  // namespace quire
