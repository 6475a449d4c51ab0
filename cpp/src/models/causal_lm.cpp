#include "models/causal_lm.h"

#include "util/str.h"

namespace quire {

std::string layer_name(int32_t layer) { return str("model.layers.", layer); }

std::string find_prefix(const BuildContext& build, const std::string& prefix, const std::string& name) {
  return build.checkpoint.has(name) ? "" : prefix;
}

CausalLM::CausalLM(BuildContext& build, const TransformerConfig& config, const LayerFactory& make_layer,
                   const CausalLMNames& names)
    : vocab_size_(config.vocab_size),
      hidden_size_(config.hidden_size),
      dtype_(build.dtype),
      embed_tokens_(build, names.embed_tokens, config.vocab_size, config.hidden_size,
                    /*for_logits=*/config.tie_word_embeddings),
      norm_(build, names.norm, config.hidden_size, config.norm) {
  layers_.reserve(static_cast<size_t>(config.num_layers));
  for (int32_t layer = 0; layer < config.num_layers; ++layer) layers_.push_back(make_layer(layer));
  if (!config.tie_word_embeddings) {
    lm_head_.emplace(build, names.lm_head, config.vocab_size, config.hidden_size);
  }
  build.ignored_weights.emplace_back("rotary_emb.inv_freq");
  if (config.tie_word_embeddings) build.ignored_weights.push_back(names.lm_head + ".weight");
}

std::vector<KVCacheSpec> CausalLM::kv_cache_specs() const {
  std::vector<KVCacheSpec> specs;
  for (const auto& layer : layers_) specs.push_back(layer->kv_cache_spec());
  return specs;
}

TensorView CausalLM::forward(const ForwardContext& context, const ModelInput& input) const {
  ForwardContext ctx = context;
  ctx.num_tokens = input.num_tokens;
  TensorView value = input.inputs_embeds;
  if (value.data == nullptr) {
    value = ctx.arena.take(dtype_, input.input_ids.shape[0], hidden_size_);
    embed(ctx, value, input);
  }
  ResidualStream stream(ctx, value);
  for (const auto& layer : layers_) {
    if (layer == layers_.back()) ctx.wanted_rows = input.wanted_rows;
    const size_t mark = ctx.arena.mark();
    layer->forward(ctx, stream, input);
    ctx.arena.release(mark);
  }
  if (stream.is_empty()) return ctx.arena.take(dtype_, 0, hidden_size_);
  return stream.normalized(ctx, norm_);
}

void CausalLM::embed(const ForwardContext& ctx, TensorView out, const ModelInput& input) const {
  embed_tokens_.forward(ctx, out, input.input_ids);
}

void CausalLM::compute_logits(const ForwardContext& ctx, TensorView logits, TensorView hidden) const {
  if (lm_head_) {
    lm_head_->compute_logits(ctx, logits, hidden);
  } else {
    embed_tokens_.compute_logits(ctx, logits, hidden);
  }
}

}  // namespace quire
