// GPT-NeoX (Black et al., 2022) and Pythia (Biderman et al., 2023): attention and feed-forward side by side,
// LayerNorm, a part of each head rotated.
#include "layers/mlp.h"
#include "models/model_registry.h"
#include "models/parallel_layer.h"
#include "models/pre_norm_layer.h"

namespace quire {
namespace {

std::unique_ptr<Model> make_gpt_neox(BuildContext& build, const HfConfig& hf_config) {
  auto config = TransformerConfig::read(hf_config);
  config.check_no_groups(hf_config);
  config.norm = {.kind = NormConfig::Kind::kLayer, .eps = hf_config.get_positive("layer_norm_eps", 1e-5)};
  const bool bias = hf_config.get_bool("attention_bias", true);
  MLPConfig mlp{config.hidden_size, config.intermediate_size};
  mlp.activation = read_activation(hf_config, "hidden_act", "gelu");
  mlp.up = "dense_h_to_4h";
  mlp.down = "dense_4h_to_h";
  const auto rotary = make_rotary_embedding(
      build, hf_config, config.head_size,
      {.partial_rotary_factor = 0.25, .theta_key = "rotary_emb_base", .partial_key = "rotary_pct"});
  const bool parallel = hf_config.get_bool("use_parallel_residual", true);
  build.ignored_weights.insert(build.ignored_weights.end(), {".attention.bias", ".attention.masked_bias"});
  const std::string prefix = find_prefix(build, "gpt_neox.", "embed_in.weight");
  // As transformers calls it in memory, or as checkpoints do.
  const std::string head = build.checkpoint.has("lm_head.weight") ? "lm_head" : "embed_out";
  const auto make_layer = [&](int32_t layer) -> std::unique_ptr<DecoderLayer> {
    const LayerNames names = {.layer = prefix + "layers." + std::to_string(layer), .attention = "attention"};
    SelfAttentionConfig attention = config.attention(layer, rotary);
    attention.qkv_rows = QkvRows::kByHead;
    attention.qkv = "query_key_value";
    attention.o = "dense";
    attention.qkv_bias = attention.o_bias = bias;
    if (parallel) return std::make_unique<ParallelLayer<MLP>>(build, config.norm, attention, mlp, names);
    return std::make_unique<PreNormLayer<MLP>>(build, config.norm, attention, mlp, names);
  };
  return std::make_unique<CausalLM>(
      build, config, make_layer,
      CausalLMNames{
          .embed_tokens = prefix + "embed_in", .norm = prefix + "final_layer_norm", .lm_head = head});
}

const bool registered_gpt_neox = register_model("GPTNeoXForCausalLM", make_gpt_neox);

}  // namespace
}  // namespace quire
