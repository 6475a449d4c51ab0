// StableLM (Bellagente et al., 2024): as Llama, with LayerNorm, a quarter of each head rotated, and in some
// of them attention and feed-forward side by side, or norms of queries and keys that each head has for
// itself.
#include "models/model_registry.h"
#include "models/parallel_layer.h"
#include "models/pre_norm_layer.h"

namespace quire {
namespace {

// "<name>.q_layernorm.norms.<head>" and k_layernorm.
class NormsOfHeads final : public QKNorm {
 public:
  NormsOfHeads(BuildContext& build, const std::string& name, const HeadShare& heads, const NormConfig& norm) {
    const auto load = [&](const char* part, int64_t first, int64_t count, int64_t total,
                          std::vector<Norm>& norms) {
      for (int64_t head = 0; head < total; ++head) {
        const std::string each = name + part + std::to_string(head);
        if (head >= first && head < first + count) {
          norms.emplace_back(build, each, heads.head_size, norm);
        } else {
          build.checkpoint.take(each + ".weight", {heads.head_size});  // another rank's
        }
      }
    };
    load(".q_layernorm.norms.", heads.first, heads.num, heads.total, q_norms_);
    load(".k_layernorm.norms.", heads.first_kv, heads.num_kv, heads.total_kv, k_norms_);
  }

  void forward(const ForwardContext& ctx, TensorView& q, TensorView& k) const override {
    norm(ctx, q_norms_, q);
    norm(ctx, k_norms_, k);
  }

 private:
  static void norm(const ForwardContext& ctx, const std::vector<Norm>& norms, TensorView x) {
    TensorView head = x;
    head.rank = 2;
    head.shape[1] = x.shape[2];
    head.shape[2] = 1;
    head.stride[1] = 1;
    for (const Norm& norm : norms) {
      norm.forward(ctx, head, head);
      head.data =
          static_cast<std::byte*>(head.data) + x.stride[1] * static_cast<int64_t>(dtype_bytes(x.dtype));
    }
  }

  std::vector<Norm> q_norms_, k_norms_;
};

std::unique_ptr<Model> make_stablelm(BuildContext& build, const HfConfig& hf_config) {
  auto config = TransformerConfig::read(hf_config, {.num_kv_heads = 32});
  config.norm = {.kind = NormConfig::Kind::kLayer, .eps = hf_config.get_positive("layer_norm_eps", 1e-5)};
  GatedMLPConfig mlp = config.mlp();
  mlp.activation = read_activation(hf_config, "hidden_act", "silu");
  const auto rotary =
      make_rotary_embedding(build, hf_config, config.head_size, {.partial_rotary_factor = 0.25});
  const bool parallel = hf_config.get_bool("use_parallel_residual", false);
  NormConfig head_norm = config.norm;
  head_norm.bias = false;
  const auto make_layer = [&](int32_t layer) -> std::unique_ptr<DecoderLayer> {
    LayerNames names = {.layer = layer_name(layer)};
    SelfAttentionConfig attention = config.attention(layer, rotary);
    attention.qkv_bias = hf_config.get_bool("use_qkv_bias", false);
    if (hf_config.get_bool("qk_layernorm", false)) {
      attention.qk_norm = [head_norm](BuildContext& build, const std::string& name, const HeadShare& heads) {
        return std::unique_ptr<QKNorm>(std::make_unique<NormsOfHeads>(build, name, heads, head_norm));
      };
    }
    if (!parallel) return std::make_unique<PreNormLayer<>>(build, config.norm, attention, mlp, names);
    names.post_attention_norm.clear();
    return std::make_unique<ParallelLayer<>>(build, config.norm, attention, mlp, names);
  };
  return std::make_unique<CausalLM>(build, config, make_layer);
}

const bool registered_stablelm = register_model("StableLmForCausalLM", make_stablelm);

}  // namespace
}  // namespace quire
