// Bloom (BigScience Workshop, 2022): scores fall with the distance (ALiBi) instead of any embedding of
// positions; LayerNorm, over the embeddings too.
#include "layers/alibi.h"
#include "layers/mlp.h"
#include "models/model_registry.h"
#include "models/pre_norm_layer.h"

namespace quire {
namespace {

// Any length would do; it was trained for this one.
constexpr int32_t kTrainedLength = 2048;

HfConfig adapt_bloom(const HfConfig& config) {
  const HfConfig out = config.with_alias("hidden_size", "n_embed")
                           .with_alias("num_hidden_layers", "n_layer")
                           .with_alias("num_attention_heads", "n_head")
                           .with_alias("max_position_embeddings", "seq_length")
                           .with_default("max_position_embeddings", kTrainedLength);
  return out.with_default("intermediate_size", 4 * out.get_int("hidden_size", 1, 1 << 24));
}

class BloomForCausalLM final : public CausalLM {
 public:
  BloomForCausalLM(BuildContext& build, const TransformerConfig& config, const LayerFactory& make_layer,
                   const std::string& prefix)
      : CausalLM(build, config, make_layer,
                 {.embed_tokens = prefix + "word_embeddings", .norm = prefix + "ln_f"}),
        embedding_norm_(build, prefix + "word_embeddings_layernorm", config.hidden_size, config.norm) {}

 protected:
  void embed(const ForwardContext& ctx, TensorView out, const ModelInput& input) const override {
    CausalLM::embed(ctx, out, input);
    embedding_norm_.forward(ctx, out, out);
  }

 private:
  Norm embedding_norm_;
};

std::unique_ptr<Model> make_bloom(BuildContext& build, const HfConfig& hf_config) {
  if (hf_config.get_bool("apply_residual_connection_post_layernorm", false))
    hf_config.fail("'apply_residual_connection_post_layernorm' true is not supported");
  auto config = TransformerConfig::read(hf_config);
  config.check_no_groups(hf_config);
  config.norm = {.kind = NormConfig::Kind::kLayer, .eps = hf_config.get_positive("layer_norm_epsilon", 1e-5)};
  config.tie_word_embeddings = hf_config.get_bool("tie_word_embeddings", true);
  MLPConfig mlp{config.hidden_size, config.intermediate_size};
  mlp.activation = Activation::kGeluTanh;
  mlp.up = "dense_h_to_4h";
  mlp.down = "dense_4h_to_h";
  const std::string prefix = find_prefix(build, "transformer.", "word_embeddings.weight");
  const auto make_layer = [&](int32_t layer) {
    SelfAttentionConfig attention = config.attention(layer, /*rotary=*/nullptr);
    attention.alibi_slopes = alibi_slopes(config.num_heads);
    attention.qkv_rows = QkvRows::kByHead;
    attention.qkv = "query_key_value";
    attention.o = "dense";
    attention.qkv_bias = attention.o_bias = true;
    return std::make_unique<PreNormLayer<MLP>>(
        build, config.norm, attention, mlp,
        LayerNames{.layer = prefix + "h." + std::to_string(layer), .attention = "self_attention"});
  };
  return std::make_unique<BloomForCausalLM>(build, config, make_layer, prefix);
}

const bool registered_bloom = register_model("BloomForCausalLM", make_bloom, adapt_bloom);

}  // namespace
}  // namespace quire
