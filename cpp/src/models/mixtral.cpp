// Mixtral (Jiang et al., 2024): as Mistral, with a mixture of experts for every feed-forward part.
#include "layers/moe.h"
#include "models/model_registry.h"
#include "models/pre_norm_layer.h"
#include "models/sliding_window.h"

namespace quire {
namespace {

std::unique_ptr<Model> make_mixtral(BuildContext& build, const HfConfig& hf_config) {
  const auto config = TransformerConfig::read(hf_config, {.norm_eps = 1e-5, .num_kv_heads = 8});
  MoEConfig moe;
  moe.hidden_size = config.hidden_size;
  moe.intermediate_size = config.intermediate_size;
  moe.num_experts = hf_config.get_int("num_local_experts", 1, 1 << 16, 8);
  moe.top_k = hf_config.get_int("num_experts_per_tok", 1, 1 << 16, 2);
  moe.activation = read_activation(hf_config, "hidden_act", "silu");
  moe.experts =
      experts_by_number(moe.num_experts, config.hidden_size, config.intermediate_size, "w1", "w3", "w2");
  moe.expert_names = {.gate = "w1", .up = "w3", .down = "w2"};
  moe.aliases = {{".block_sparse_moe.", ".mlp."}};
  moe.check(hf_config);
  // As transformers calls it in memory, or as checkpoints do.
  const std::string feed_forward =
      build.checkpoint.has(layer_name(0) + ".mlp.gate.weight") ? "mlp" : "block_sparse_moe";
  const int32_t window = read_window(hf_config, 0);
  const auto rotary = make_rotary_embedding(build, hf_config, config.head_size, {.theta = 1e6});
  return std::make_unique<CausalLM>(build, config, [&](int32_t layer) {
    SelfAttentionConfig attention = config.attention(layer, rotary);
    attention.sliding_window = window;
    return std::make_unique<PreNormLayer<MoE>>(
        build, config.norm, attention, moe,
        LayerNames{.layer = layer_name(layer), .feed_forward = feed_forward});
  });
}

const bool registered_mixtral = register_model("MixtralForCausalLM", make_mixtral);

}  // namespace
}  // namespace quire
