// OPT (Zhang et al., 2022): learned positions from the third row on, LayerNorm, ReLU.
#include "layers/learned_positions.h"
#include "layers/mlp.h"
#include "models/model_registry.h"
#include "models/pre_norm_layer.h"

namespace quire {
namespace {

HfConfig adapt_opt(const HfConfig& config) { return config.with_alias("intermediate_size", "ffn_dim"); }

class OPTForCausalLM final : public CausalLM {
 public:
  OPTForCausalLM(BuildContext& build, const HfConfig& hf_config, const TransformerConfig& config,
                 const LayerFactory& make_layer, const std::string& prefix)
      : CausalLM(build, config, make_layer,
                 {.embed_tokens = prefix + "embed_tokens", .norm = prefix + "final_layer_norm"}),
        positions_(build, prefix + "embed_positions",
                   hf_config.get_int("max_position_embeddings", 1, 1 << 24), config.hidden_size,
                   /*first=*/2) {}

 protected:
  void embed(const ForwardContext& ctx, TensorView out, const ModelInput& input) const override {
    CausalLM::embed(ctx, out, input);
    positions_.add_to(ctx, out, input.positions);
  }

 private:
  LearnedPositions positions_;
};

// Only the model of 350 million parameters is otherwise.
void check_opt(const HfConfig& config, int32_t hidden_size) {
  if (!config.get_bool("do_layer_norm_before", true))
    config.fail("'do_layer_norm_before' false (opt-350m) is not supported: norms come before their parts");
  if (config.get_bool("_remove_final_layer_norm", false))
    config.fail("'_remove_final_layer_norm' true is not supported");
  if (!config.get_bool("layer_norm_elementwise_affine", true))
    config.fail("'layer_norm_elementwise_affine' false is not supported");
  if (config.get_int("word_embed_proj_dim", 1, 1 << 24, hidden_size) != hidden_size)
    config.fail("'word_embed_proj_dim' must be 'hidden_size', " + std::to_string(hidden_size));
}

std::unique_ptr<Model> make_opt(BuildContext& build, const HfConfig& hf_config) {
  auto config = TransformerConfig::read(hf_config);
  check_opt(hf_config, config.hidden_size);
  config.norm = {.kind = NormConfig::Kind::kLayer, .eps = 1e-5};
  config.tie_word_embeddings = hf_config.get_bool("tie_word_embeddings", true);
  const bool bias = hf_config.get_bool("enable_bias", true);
  MLPConfig mlp{config.hidden_size, config.intermediate_size};
  mlp.activation = read_activation(hf_config, "activation_function", "relu");
  mlp.bias = bias;
  mlp.up = "fc1";
  mlp.down = "fc2";
  const std::string prefix = find_prefix(build, "model.", "decoder.embed_tokens.weight") + "decoder.";
  const auto make_layer = [&](int32_t layer) {
    SelfAttentionConfig attention = config.attention(layer, /*rotary=*/nullptr);
    attention.o = "out_proj";
    attention.qkv_bias = attention.o_bias = bias;
    return std::make_unique<PreNormLayer<MLP>>(build, config.norm, attention, mlp,
                                               LayerNames{.layer = prefix + "layers." + std::to_string(layer),
                                                          .input_norm = "self_attn_layer_norm",
                                                          .post_attention_norm = "final_layer_norm",
                                                          .feed_forward = ""});
  };
  return std::make_unique<OPTForCausalLM>(build, hf_config, config, make_layer, prefix);
}

const bool registered_opt = register_model("OPTForCausalLM", make_opt, adapt_opt);

}  // namespace
}  // namespace quire
