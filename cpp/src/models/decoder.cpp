#include "models/decoder.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "util/check.h"

namespace quire {
namespace {

constexpr int32_t kMaxSize = 1 << 24;

// This rank's heads. KV heads fewer than ranks are held by several.
struct HeadShard {
  int64_t num_heads, first_head, num_kv_heads, first_kv_head;
};

HeadShard shard_heads(const DecoderConfig& config, int32_t rank, int32_t world_size) {
  const int64_t num_heads = config.num_heads / world_size;
  const int64_t num_kv_heads = std::max(config.num_kv_heads / world_size, 1);
  return {num_heads, rank * num_heads, num_kv_heads, int64_t{rank} * config.num_kv_heads / world_size};
}

void check_divisible(const BuildContext& build, const DecoderConfig& config) {
  const int32_t ranks = build.world_size;
  const bool kv_fits = config.num_kv_heads % ranks == 0 || ranks % config.num_kv_heads == 0;
  if (config.num_heads % ranks != 0 || config.intermediate_size % ranks != 0 || !kv_fits) {
    throw InvalidArgument(str("tensor_parallel_size ", ranks, " does not divide num_attention_heads ",
                              config.num_heads, ", num_key_value_heads ", config.num_kv_heads,
                              " and intermediate_size ", config.intermediate_size));
  }
}

}  // namespace

DecoderConfig DecoderConfig::read(const HfConfig& config) {
  DecoderConfig out;
  out.vocab_size = config.get_int("vocab_size", 1, kMaxSize);
  out.hidden_size = config.get_int("hidden_size", 1, kMaxSize);
  out.intermediate_size = config.get_int("intermediate_size", 1, kMaxSize);
  out.num_layers = config.get_int("num_hidden_layers", 1, 4096);
  out.num_heads = config.get_int("num_attention_heads", 1, 65536);
  out.num_kv_heads = config.get_int("num_key_value_heads", 1, 65536, out.num_heads);
  if (!config.has("head_dim") && out.hidden_size % out.num_heads != 0) {
    config.fail(
        str("'num_attention_heads' ", out.num_heads, " does not divide 'hidden_size' ", out.hidden_size));
  }
  out.head_size = config.get_int("head_dim", 1, 65536, out.hidden_size / out.num_heads);
  if (out.num_heads % out.num_kv_heads != 0) {
    config.fail(str("'num_key_value_heads' ", out.num_kv_heads, " does not divide 'num_attention_heads' ",
                    out.num_heads));
  }
  out.rms_norm_eps = config.get_positive("rms_norm_eps", 1e-6);
  out.tie_word_embeddings = config.get_bool("tie_word_embeddings", false);
  const std::string act = config.get_string("hidden_act", "silu");
  if (act != "silu") config.fail("'hidden_act' '" + act + "' is not supported; supported: silu");
  return out;
}

Decoder::Layer::Layer(BuildContext& build, const DecoderConfig& config, int32_t index)
    : attention([&] {
        const HeadShard heads = shard_heads(config, build.rank, build.world_size);
        AttentionConfig attention_config;
        attention_config.layer = index;
        attention_config.num_heads = static_cast<int32_t>(heads.num_heads);
        attention_config.num_kv_heads = static_cast<int32_t>(heads.num_kv_heads);
        attention_config.head_size = config.head_size;
        attention_config.scale = static_cast<float>(1.0 / std::sqrt(config.head_size));
        if (!config.sliding_windows.empty()) {
          attention_config.sliding_window = config.sliding_windows[static_cast<size_t>(index)];
        }
        return Attention(build, attention_config);
      }()) {
  const std::string prefix = str("model.layers.", index, ".");
  const HeadShard heads = shard_heads(config, build.rank, build.world_size);
  const int64_t hidden = config.hidden_size;
  const int64_t D = config.head_size;
  const auto head_rows = [&](const char* name, int64_t total, int64_t first, int64_t count) {
    return LinearPart{prefix + "self_attn." + name, total * D, first * D, count * D};
  };
  qkv = Linear::column_parallel(
      build,
      {head_rows("q_proj", config.num_heads, heads.first_head, heads.num_heads),
       head_rows("k_proj", config.num_kv_heads, heads.first_kv_head, heads.num_kv_heads),
       head_rows("v_proj", config.num_kv_heads, heads.first_kv_head, heads.num_kv_heads)},
      hidden, config.qkv_bias);
  if (config.qk_norm) {
    q_norm.emplace(build, prefix + "self_attn.q_norm", D, config.rms_norm_eps);
    k_norm.emplace(build, prefix + "self_attn.k_norm", D, config.rms_norm_eps);
  }
  o = Linear::row_parallel(build, prefix + "self_attn.o_proj", hidden, config.num_heads * D, config.o_bias);
  const Shard mlp = even_shard(config.intermediate_size, build.rank, build.world_size);
  gate_up =
      Linear::column_parallel(build,
                              {{prefix + "mlp.gate_proj", config.intermediate_size, mlp.begin, mlp.count},
                               {prefix + "mlp.up_proj", config.intermediate_size, mlp.begin, mlp.count}},
                              hidden, config.mlp_bias);
  down = Linear::row_parallel(build, prefix + "mlp.down_proj", hidden, config.intermediate_size,
                              config.mlp_bias);
  input_norm = RMSNorm(build, prefix + "input_layernorm", hidden, config.rms_norm_eps);
  post_attention_norm = RMSNorm(build, prefix + "post_attention_layernorm", hidden, config.rms_norm_eps);
}

Decoder::Decoder(BuildContext& build, const HfConfig& hf_config, const DecoderConfig& config)
    : config_((check_divisible(build, config), config)),
      dtype_(build.dtype),
      num_heads_(shard_heads(config, build.rank, build.world_size).num_heads),
      num_kv_heads_(shard_heads(config, build.rank, build.world_size).num_kv_heads),
      intermediate_size_(config.intermediate_size / build.world_size),
      rotary_(build, RotaryConfig::read(hf_config, config.head_size, build.max_model_len)),
      embed_tokens_(build, "model.embed_tokens", config.vocab_size, config.hidden_size,
                    config.tie_word_embeddings),
      norm_(build, "model.norm", config.hidden_size, config.rms_norm_eps) {
  layers_.reserve(static_cast<size_t>(config.num_layers));
  for (int32_t i = 0; i < config.num_layers; ++i) layers_.emplace_back(build, config, i);
  if (!config.tie_word_embeddings) {
    lm_head_.emplace(build, "lm_head", config.vocab_size, config.hidden_size, /*for_logits=*/true);
  }
  // Some exporters write what can be derived.
  std::vector<std::string_view> ignored = {"rotary_emb.inv_freq"};
  if (config.tie_word_embeddings) ignored.push_back("lm_head.weight");
  build.checkpoint.check_all_taken(ignored);
}

std::vector<KVCacheSpec> Decoder::kv_cache_specs() const {
  std::vector<KVCacheSpec> specs;
  for (const Layer& layer : layers_) specs.push_back(layer.attention.kv_cache_spec());
  return specs;
}

size_t Decoder::activation_bytes(int64_t num_tokens, int64_t num_logits) const {
  const int64_t D = config_.head_size;
  size_t bytes = 0;
  for (int64_t width :
       {int64_t{config_.hidden_size}, int64_t{config_.hidden_size}, int64_t{config_.hidden_size},
        (num_heads_ + 2 * num_kv_heads_) * D, num_heads_ * D, 2 * intermediate_size_, intermediate_size_}) {
    bytes += ActivationArena::bytes(dtype_, num_tokens * width);
  }
  const VocabParallelEmbedding& head = lm_head_ ? *lm_head_ : embed_tokens_;
  return bytes + head.logits_bytes(num_logits);
}

TensorView Decoder::forward(const ForwardContext& ctx, const ModelInput& input) const {
  const int64_t T = input.input_ids.shape[0];
  const int64_t D = config_.head_size;
  const auto take = [&](int64_t width) { return ctx.arena.take(dtype_, T, width); };
  Activations a;
  a.residual = take(config_.hidden_size);
  a.x = take(config_.hidden_size);
  a.out = take(config_.hidden_size);
  a.qkv = take((num_heads_ + 2 * num_kv_heads_) * D);
  a.heads = take(num_heads_ * D);
  a.gate_up = take(2 * intermediate_size_);
  a.gated = take(intermediate_size_);

  embed_tokens_.forward(ctx, a.residual, input.input_ids);
  for (const Layer& layer : layers_) forward_layer(ctx, layer, a, input.positions, &layer == layers_.data());
  norm_.forward_add(ctx, a.x, a.residual, a.out);
  return a.x;
}

// Leaves the MLP's output in a.out, to be added by the next norm.
void Decoder::forward_layer(const ForwardContext& ctx, const Layer& layer, const Activations& a,
                            TensorView positions, bool first) const {
  if (first) {
    layer.input_norm.forward(ctx, a.x, a.residual);
  } else {
    layer.input_norm.forward_add(ctx, a.x, a.residual, a.out);
  }
  layer.qkv.forward(ctx, a.qkv, a.x);
  const int64_t D = config_.head_size;
  const TensorView q = a.qkv.columns(0, num_heads_ * D).heads(num_heads_, D);
  const TensorView k = a.qkv.columns(num_heads_ * D, num_kv_heads_ * D).heads(num_kv_heads_, D);
  const TensorView v =
      a.qkv.columns((num_heads_ + num_kv_heads_) * D, num_kv_heads_ * D).heads(num_kv_heads_, D);
  if (layer.q_norm) {
    layer.q_norm->forward(ctx, q, q);
    layer.k_norm->forward(ctx, k, k);
  }
  layer.attention.forward(ctx, a.heads.heads(num_heads_, D), q, k, v, rotary_, positions);
  layer.o.forward(ctx, a.out, a.heads);

  layer.post_attention_norm.forward_add(ctx, a.x, a.residual, a.out);
  layer.gate_up.forward(ctx, a.gate_up, a.x);
  ctx.ops.silu_and_mul(ctx.launch, a.gated, a.gate_up);
  layer.down.forward(ctx, a.out, a.gated);
}

void Decoder::compute_logits(const ForwardContext& ctx, TensorView logits, TensorView hidden) const {
  (lm_head_ ? *lm_head_ : embed_tokens_).compute_logits(ctx, logits, hidden);
}

}  // namespace quire
