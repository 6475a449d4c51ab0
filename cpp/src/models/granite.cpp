// Granite 3 (Granite Team, IBM, 2024): as Llama, with factors on embeddings, on what each part of a layer
// adds, on attention's scores and on logits.
#include "layers/gated_mlp.h"
#include "layers/moe.h"
#include "models/causal_lm.h"
#include "models/layer_names.h"
#include "models/model_registry.h"

namespace quire {
namespace {

template <typename FeedForward>
class GraniteLayer final : public DecoderLayer {
 public:
  GraniteLayer(BuildContext& build, const NormConfig& norm, const SelfAttentionConfig& attention,
               const typename FeedForward::Config& feed_forward, const LayerNames& names,
               float residual_multiplier)
      : input_norm_(build, names.of(names.input_norm), attention.hidden_size, norm),
        post_attention_norm_(build, names.of(names.post_attention_norm), attention.hidden_size, norm),
        attention_(build, names.of(names.attention), attention),
        feed_forward_(build, names.of(names.feed_forward), feed_forward),
        residual_multiplier_(residual_multiplier) {}

  const KVCacheSpec& kv_cache_spec() const override { return attention_.kv_cache_spec(); }

  void forward(const ForwardContext& ctx, ResidualStream& stream, const ModelInput& input) const override {
    const TensorView x = stream.normalized(ctx, input_norm_);
    attention_.forward(ctx, stream.narrowed_addend(ctx), x, input.positions);
    if (stream.is_empty()) return;
    ctx.ops.scale(ctx.launch, stream.addend(), residual_multiplier_);
    stream.add();
    feed_forward_.forward(ctx, stream.addend(), stream.normalized(ctx, post_attention_norm_));
    ctx.ops.scale(ctx.launch, stream.addend(), residual_multiplier_);
    stream.add();
  }

 private:
  Norm input_norm_, post_attention_norm_;
  SelfAttention attention_;
  FeedForward feed_forward_;
  float residual_multiplier_;
};

float read_factor(const HfConfig& config, const char* key) {
  return static_cast<float>(config.get_positive(key, 1.0));
}

class GraniteForCausalLM final : public CausalLM {
 public:
  GraniteForCausalLM(BuildContext& build, const HfConfig& hf_config, const TransformerConfig& config,
                     const LayerFactory& make_layer)
      : CausalLM(build, config, make_layer),
        embedding_multiplier_(read_factor(hf_config, "embedding_multiplier")),
        logits_multiplier_(1.0F / read_factor(hf_config, "logits_scaling")) {}

  void compute_logits(const ForwardContext& ctx, TensorView logits, TensorView hidden) const override {
    CausalLM::compute_logits(ctx, logits, hidden);
    ctx.ops.scale(ctx.launch, logits, logits_multiplier_);
  }

 protected:
  void embed(const ForwardContext& ctx, TensorView out, const ModelInput& input) const override {
    CausalLM::embed(ctx, out, input);
    ctx.ops.scale(ctx.launch, out, embedding_multiplier_);
  }

 private:
  float embedding_multiplier_, logits_multiplier_;
};

template <typename FeedForward>
std::unique_ptr<Model> make_granite_of(BuildContext& build, const HfConfig& hf_config,
                                       const TransformerConfig& config,
                                       const typename FeedForward::Config& feed_forward, LayerNames names) {
  const auto rotary = make_rotary_embedding(build, hf_config, config.head_size);
  return std::make_unique<GraniteForCausalLM>(build, hf_config, config, [&](int32_t layer) {
    SelfAttentionConfig attention = config.attention(layer, rotary);
    attention.scale = read_factor(hf_config, "attention_multiplier");
    attention.qkv_bias = attention.o_bias = hf_config.get_bool("attention_bias", false);
    names.layer = layer_name(layer);
    return std::make_unique<GraniteLayer<FeedForward>>(build, config.norm, attention, feed_forward, names,
                                                       read_factor(hf_config, "residual_multiplier"));
  });
}

std::unique_ptr<Model> make_granite(BuildContext& build, const HfConfig& hf_config) {
  const auto config = TransformerConfig::read(hf_config);
  GatedMLPConfig mlp = config.mlp();
  mlp.activation = read_activation(hf_config, "hidden_act", "silu");
  mlp.bias = hf_config.get_bool("mlp_bias", false);
  return make_granite_of<GatedMLP>(build, hf_config, config, mlp, {});
}

std::unique_ptr<Model> make_granite_moe(BuildContext& build, const HfConfig& hf_config) {
  const auto config = TransformerConfig::read(hf_config);
  MoEConfig moe;
  moe.hidden_size = config.hidden_size;
  moe.intermediate_size = config.intermediate_size;
  moe.num_experts = hf_config.get_int("num_local_experts", 1, 1 << 16, 8);
  moe.top_k = hf_config.get_int("num_experts_per_tok", 1, 1 << 16, 2);
  moe.activation = read_activation(hf_config, "hidden_act", "silu");
  // As transformers calls them in memory, or as checkpoints do.
  const bool in_memory = build.checkpoint.has(layer_name(0) + ".block_sparse_moe.router.weight");
  moe.router = in_memory ? "router" : "router.layer";
  moe.experts = experts_in_one(moe.num_experts, config.hidden_size, config.intermediate_size,
                               in_memory ? "experts.gate_up_proj" : "input_linear.weight",
                               in_memory ? "experts.down_proj" : "output_linear.weight");
  moe.expert_names = {.gate = "w1", .up = "w3", .down = "w2"};
  moe.aliases = {{".block_sparse_moe.input_linear", ".block_sparse_moe.experts.gate_up_proj"},
                 {".block_sparse_moe.output_linear", ".block_sparse_moe.experts.down_proj"},
                 {".block_sparse_moe.router.layer", ".block_sparse_moe.router"}};
  moe.check(hf_config);
  return make_granite_of<MoE>(build, hf_config, config, moe, {.feed_forward = "block_sparse_moe"});
}

const bool registered_granite = register_model("GraniteForCausalLM", make_granite);
const bool registered_granite_moe = register_model("GraniteMoeForCausalLM", make_granite_moe);

}  // namespace
}  // namespace quire
