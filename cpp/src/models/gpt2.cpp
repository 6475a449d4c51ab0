// GPT-2 (Radford et al., 2019): learned positions, LayerNorm, a feed-forward part without a gate; its weights
// are stored with their inputs first.
#include "layers/learned_positions.h"
#include "layers/mlp.h"
#include "models/model_registry.h"
#include "models/pre_norm_layer.h"

namespace quire {
namespace {

HfConfig adapt_gpt2(const HfConfig& config) {
  const HfConfig out = config.with_alias("hidden_size", "n_embd")
                           .with_alias("num_hidden_layers", "n_layer")
                           .with_alias("num_attention_heads", "n_head")
                           .with_alias("max_position_embeddings", "n_positions")
                           .with_alias("intermediate_size", "n_inner");
  return out.with_default("intermediate_size", 4 * out.get_int("hidden_size", 1, 1 << 24));
}

class GPT2LMHeadModel final : public CausalLM {
 public:
  GPT2LMHeadModel(BuildContext& build, const HfConfig& hf_config, const TransformerConfig& config,
                  const LayerFactory& make_layer, const std::string& prefix)
      : CausalLM(build, config, make_layer, {.embed_tokens = prefix + "wte", .norm = prefix + "ln_f"}),
        positions_(build, prefix + "wpe", hf_config.get_int("max_position_embeddings", 1, 1 << 24),
                   config.hidden_size) {}

 protected:
  void embed(const ForwardContext& ctx, TensorView out, const ModelInput& input) const override {
    CausalLM::embed(ctx, out, input);
    positions_.add_to(ctx, out, input.positions);
  }

 private:
  LearnedPositions positions_;
};

std::unique_ptr<Model> make_gpt2(BuildContext& build, const HfConfig& hf_config) {
  for (const char* key : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"}) {
    if (hf_config.get_bool(key, false)) hf_config.fail(std::string("'") + key + "' true is not supported");
  }
  auto config = TransformerConfig::read(hf_config);
  config.norm = {.kind = NormConfig::Kind::kLayer, .eps = hf_config.get_positive("layer_norm_epsilon", 1e-5)};
  config.tie_word_embeddings = hf_config.get_bool("tie_word_embeddings", true);
  MLPConfig mlp{config.hidden_size, config.intermediate_size};
  mlp.activation = read_activation(hf_config, "activation_function", "gelu_new");
  mlp.up = "c_fc";
  mlp.down = "c_proj";
  mlp.order = WeightOrder::kInputsFirst;
  build.ignored_weights.insert(build.ignored_weights.end(), {".attn.bias", ".attn.masked_bias"});
  const std::string prefix = find_prefix(build, "transformer.", "wte.weight");
  const auto make_layer = [&](int32_t layer) {
    SelfAttentionConfig attention = config.attention(layer, /*rotary=*/nullptr);
    if (!hf_config.get_bool("scale_attn_weights", true)) attention.scale = 1.0F;
    attention.qkv_rows = QkvRows::kStacked;
    attention.qkv = "c_attn";
    attention.o = "c_proj";
    attention.order = WeightOrder::kInputsFirst;
    attention.qkv_bias = attention.o_bias = true;
    return std::make_unique<PreNormLayer<MLP>>(build, config.norm, attention, mlp,
                                               LayerNames{.layer = prefix + "h." + std::to_string(layer),
                                                          .input_norm = "ln_1",
                                                          .attention = "attn",
                                                          .post_attention_norm = "ln_2"});
  };
  return std::make_unique<GPT2LMHeadModel>(build, hf_config, config, make_layer, prefix);
}

const bool registered_gpt2 = register_model("GPT2LMHeadModel", make_gpt2, adapt_gpt2);

}  // namespace
}  // namespace quire
