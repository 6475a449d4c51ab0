// Qwen 2 and 3 with mixtures of experts (Yang et al., 2024 and 2025): in Qwen 2 one expert more, behind a
// gate of its own, is every token's; in both some layers may be as in the dense model.
#include "layers/moe.h"
#include "models/model_registry.h"
#include "models/pre_norm_layer.h"
#include "models/sliding_window.h"

namespace quire {
namespace {

HfConfig adapt_qwen_moe(const HfConfig& config) {
  return config.with_alias("num_experts", "num_local_experts");
}

// Per layer whether it has experts.
std::vector<bool> read_sparse_layers(const HfConfig& config, int32_t num_layers) {
  const int32_t step = config.get_int("decoder_sparse_step", 1, 1 << 16, 1);
  std::vector<bool> sparse;
  for (int32_t layer = 0; layer < num_layers; ++layer) sparse.push_back((layer + 1) % step == 0);
  for (const int32_t dense : config.get_ints("mlp_only_layers", 0, num_layers - 1))
    sparse[static_cast<size_t>(dense)] = false;
  return sparse;
}

MoEConfig read_qwen_moe(const HfConfig& hf_config, const TransformerConfig& config, int32_t usual_top_k) {
  MoEConfig moe;
  moe.hidden_size = config.hidden_size;
  moe.intermediate_size = hf_config.get_int("moe_intermediate_size", 1, 1 << 24);
  moe.num_experts = hf_config.get_int("num_experts", 1, 1 << 16);
  moe.top_k = hf_config.get_int("num_experts_per_tok", 1, 1 << 16, usual_top_k);
  moe.activation = read_activation(hf_config, "hidden_act", "silu");
  moe.renormalize = hf_config.get_bool("norm_topk_prob", false);
  moe.experts = experts_by_number(moe.num_experts, config.hidden_size, moe.intermediate_size, "gate_proj",
                                  "up_proj", "down_proj");
  moe.check(hf_config);
  return moe;
}

std::unique_ptr<Model> make_qwen_moe(BuildContext& build, const HfConfig& hf_config,
                                     const TransformerConfig& config, const MoEConfig& moe,
                                     const SelfAttentionConfig& kind) {
  GatedMLPConfig mlp = config.mlp();
  mlp.activation = moe.activation;
  const auto sparse = read_sparse_layers(hf_config, config.num_layers);
  const auto windows = read_qwen_windows(hf_config, config.num_layers);
  const auto rotary = make_rotary_embedding(build, hf_config, config.head_size);
  return std::make_unique<CausalLM>(build, config, [&](int32_t layer) -> std::unique_ptr<DecoderLayer> {
    SelfAttentionConfig attention = config.attention(layer, rotary);
    attention.qkv_bias = kind.qkv_bias;
    attention.o_bias = kind.o_bias;
    attention.qk_norm = kind.qk_norm;
    attention.sliding_window = windows[static_cast<size_t>(layer)];
    if (sparse[static_cast<size_t>(layer)])
      return std::make_unique<PreNormLayer<MoE>>(build, config.norm, attention, moe);
    return std::make_unique<PreNormLayer<>>(build, config.norm, attention, mlp);
  });
}

std::unique_ptr<Model> make_qwen2_moe(BuildContext& build, const HfConfig& hf_config) {
  const auto config = TransformerConfig::read(hf_config, {.num_kv_heads = 16});
  MoEConfig moe = read_qwen_moe(hf_config, config, 4);
  moe.shared = "shared_expert";
  moe.shared_gate = "shared_expert_gate";
  moe.shared_intermediate_size = hf_config.get_int("shared_expert_intermediate_size", 1, 1 << 24);
  SelfAttentionConfig kind;
  kind.qkv_bias = hf_config.get_bool("qkv_bias", true);
  return make_qwen_moe(build, hf_config, config, moe, kind);
}

std::unique_ptr<Model> make_qwen3_moe(BuildContext& build, const HfConfig& hf_config) {
  const auto config = TransformerConfig::read(hf_config, {.num_kv_heads = 4});
  SelfAttentionConfig kind;
  kind.qkv_bias = kind.o_bias = hf_config.get_bool("attention_bias", false);
  kind.qk_norm = norm_of_each_head(config.norm);
  return make_qwen_moe(build, hf_config, config, read_qwen_moe(hf_config, config, 8), kind);
}

const bool registered_qwen2_moe = register_model("Qwen2MoeForCausalLM", make_qwen2_moe, adapt_qwen_moe);
const bool registered_qwen3_moe = register_model("Qwen3MoeForCausalLM", make_qwen3_moe, adapt_qwen_moe);

}  // namespace
}  // namespace quire
