// The decoder that Llama, Qwen 2 and Qwen 3 share: RMSNorm, rotary attention, gated MLP. An architecture says
// where it differs and which config keys say so.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "formats/hf_config.h"
#include "layers/attention.h"
#include "layers/linear.h"
#include "layers/rms_norm.h"
#include "layers/rotary_embedding.h"
#include "layers/vocab_parallel.h"
#include "models/model.h"

namespace quire {

struct DecoderConfig {
  // The keys all of them use: vocab_size, hidden_size, intermediate_size, num_hidden_layers,
  // num_attention_heads, num_key_value_heads, head_dim, rms_norm_eps, hidden_act, tie_word_embeddings.
  static DecoderConfig read(const HfConfig& config);

  int32_t vocab_size = 0;
  int32_t hidden_size = 0;
  int32_t intermediate_size = 0;
  int32_t num_layers = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_size = 0;
  double rms_norm_eps = 0.0;
  bool tie_word_embeddings = false;

  // Where they differ.
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;                  // RMSNorm over each head of q and k, before the rotation
  std::vector<int32_t> sliding_windows;  // per layer, 0 for none; empty: none at all
};

class Decoder : public Model {
 public:
  Decoder(BuildContext& build, const HfConfig& hf_config, const DecoderConfig& config);

  int32_t vocab_size() const override { return config_.vocab_size; }
  int32_t hidden_size() const override { return config_.hidden_size; }
  std::vector<KVCacheSpec> kv_cache_specs() const override;
  size_t activation_bytes(int64_t num_tokens, int64_t num_logits) const override;
  TensorView forward(const ForwardContext& ctx, const ModelInput& input) const override;
  void compute_logits(const ForwardContext& ctx, TensorView logits, TensorView hidden) const override;

 private:
  struct Layer {
    Layer(BuildContext& build, const DecoderConfig& config, int32_t index);

    RMSNorm input_norm, post_attention_norm;
    std::optional<RMSNorm> q_norm, k_norm;
    Linear qkv, o, gate_up, down;
    Attention attention;
  };
  // Buffers of one forward pass.
  struct Activations {
    TensorView residual, x, qkv, heads, gate_up, gated, out;
  };
  void forward_layer(const ForwardContext& ctx, const Layer& layer, const Activations& a,
                     TensorView positions, bool first) const;

  DecoderConfig config_;
  DType dtype_;
  int64_t num_heads_, num_kv_heads_, intermediate_size_;  // of this rank
  RotaryEmbedding rotary_;
  VocabParallelEmbedding embed_tokens_;
  std::vector<Layer> layers_;
  RMSNorm norm_;
  std::optional<VocabParallelEmbedding> lm_head_;  // absent when tied
};

}  // namespace quire
