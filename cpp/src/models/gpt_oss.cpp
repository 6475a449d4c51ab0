// GPT-OSS (OpenAI, 2025): windows on every other layer, heads that may attend to nothing, experts with biases
// whose activation is clamped.
#include <cmath>

#include "layers/moe.h"
#include "layers/quantization.h"
#include "models/model_registry.h"
#include "models/pre_norm_layer.h"
#include "models/sliding_window.h"
#include "util/str.h"

namespace quire {
namespace {

// Gate and up take turns: every other row, from `first` on.
TensorView every_other(TensorView rows, int64_t first) {
  TensorView out = slice_rows(rows, first, rows.shape[0] / 2);
  out.stride[0] *= 2;
  return out;
}

// [N] as [N, 1].
TensorView as_rows(TensorView values) {
  values.rank = 2;
  values.shape[1] = values.stride[1] = 1;
  return values;
}

// MXFP4's blocks run along the inputs, so that their rows are outputs; of plain weights the columns are.
ExpertSource gpt_oss_experts(int64_t num_experts, int64_t hidden, int64_t intermediate, bool is_mxfp4) {
  return [=](Checkpoint& checkpoint, const std::string& name, int32_t expert) {
    const auto take = [&](const char* part, std::initializer_list<int64_t> shape) {
      return of_expert(checkpoint.take(str(name, ".experts.", part), shape), expert);
    };
    const TensorView gate_up =
        is_mxfp4 ? take("gate_up_proj_blocks", {num_experts, 2 * intermediate, hidden})
                 : transposed(take("gate_up_proj", {num_experts, hidden, 2 * intermediate}));
    const TensorView gate_up_bias = as_rows(take("gate_up_proj_bias", {num_experts, 2 * intermediate}));
    ExpertTensors out;
    out.gate = every_other(gate_up, 0);
    out.up = every_other(gate_up, 1);
    out.down = is_mxfp4 ? take("down_proj_blocks", {num_experts, hidden, intermediate})
                        : transposed(take("down_proj", {num_experts, intermediate, hidden}));
    out.gate_bias = every_other(gate_up_bias, 0);
    out.up_bias = every_other(gate_up_bias, 1);
    out.down_bias = take("down_proj_bias", {num_experts, hidden});
    return out;
  };
}

MoEConfig read_gpt_oss_moe(const HfConfig& hf_config, const TransformerConfig& config, bool is_mxfp4) {
  MoEConfig moe;
  moe.hidden_size = config.hidden_size;
  moe.intermediate_size = config.intermediate_size;
  moe.num_experts = hf_config.get_int("num_local_experts", 1, 1 << 16);
  moe.top_k = hf_config.get_int("num_experts_per_tok", 1, 1 << 16, 4);
  moe.activation = Activation::kClampedSwiglu;
  for (const auto& [key, value] : {std::pair{"swiglu_limit", 7.0}, std::pair{"swiglu_alpha", 1.702}}) {
    if (hf_config.get_positive(key, value) != value)
      hf_config.fail(str("'", key, "' must be ", value, ", got ", hf_config.get_positive(key)));
  }
  moe.router = "router";
  moe.router_bias = moe.expert_bias = true;
  moe.experts = gpt_oss_experts(moe.num_experts, config.hidden_size, config.intermediate_size, is_mxfp4);
  moe.knows_mxfp4 = true;
  moe.expert_names = {.gate = "w1", .up = "w3", .down = "w2", .take_turns = true};
  moe.check(hf_config);
  return moe;
}

std::unique_ptr<Model> make_gpt_oss(BuildContext& build, const HfConfig& hf_config) {
  const auto config =
      TransformerConfig::read(hf_config, {.norm_eps = 1e-5, .num_kv_heads = 8, .head_size = 64});
  const bool is_mxfp4 = build.quantization != nullptr && build.quantization->has_mxfp4_experts();
  const MoEConfig moe = read_gpt_oss_moe(hf_config, config, is_mxfp4);
  const auto windows = read_layer_windows(hf_config, config.num_layers, read_window(hf_config, 128),
                                          [](int32_t layer) { return layer % 2 == 0; });
  const auto rotary = make_rotary_embedding(build, hf_config, config.head_size, {.theta = 150000.0});
  return std::make_unique<CausalLM>(build, config, [&](int32_t layer) {
    SelfAttentionConfig attention = config.attention(layer, rotary);
    attention.qkv_bias = attention.o_bias = hf_config.get_bool("attention_bias", true);
    attention.sliding_window = windows[static_cast<size_t>(layer)];
    attention.sinks = "sinks";
    return std::make_unique<PreNormLayer<MoE>>(build, config.norm, attention, moe);
  });
}

HfConfig adapt_gpt_oss(const HfConfig& config) {
  const HfConfig adapted = config.with_alias("num_experts_per_tok", "experts_per_token");
  if (adapted.has("rope_scaling")) return adapted;
  return adapted.with_default_object("rope_parameters", R"({
      "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
      "original_max_position_embeddings": 4096})");
}

const bool registered_gpt_oss = register_model("GptOssForCausalLM", make_gpt_oss, adapt_gpt_oss);

}  // namespace
}  // namespace quire
