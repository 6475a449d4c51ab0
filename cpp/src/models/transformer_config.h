// The keys that config.json of nearly every transformer has, under the names transformers gives them.
#pragma once

#include <cstdint>
#include <memory>

#include "formats/hf_config.h"
#include "layers/gated_mlp.h"
#include "layers/self_attention.h"
#include "quire/export.h"

namespace quire QUIRE_MODEL_API {

// What an architecture means where its config.json is silent, as the classes of transformers have it.
struct TransformerDefaults {
  double norm_eps = 1e-6;
  int32_t num_kv_heads = 0;  // 0: as many as heads
  int32_t head_size = 0;     // 0: hidden_size / num_attention_heads
  bool tie_word_embeddings = false;
};

struct TransformerConfig {
  // vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, num_key_value_heads,
  // head_dim, rms_norm_eps, tie_word_embeddings. num_key_value_heads that are null are as many as heads.
  // Throws InvalidArgument for one that is missing, out of range, or does not fit the others.
  static TransformerConfig read(const HfConfig& config, const TransformerDefaults& otherwise = {});
  // Throws InvalidArgument unless each head has keys and values of its own.
  void check_no_groups(const HfConfig& config) const;

  // The parts of a layer as these sizes make them: an architecture changes what is its own.
  SelfAttentionConfig attention(int32_t layer, std::shared_ptr<const RotaryEmbedding> rotary) const;
  GatedMLPConfig mlp() const;

  int32_t vocab_size = 0;
  int32_t hidden_size = 0;
  int32_t intermediate_size = 0;
  int32_t num_layers = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_size = 0;
  NormConfig norm;
  bool tie_word_embeddings = false;
};

}  // namespace quire
