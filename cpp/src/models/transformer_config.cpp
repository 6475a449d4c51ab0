#include "models/transformer_config.h"

#include <cmath>
#include <utility>

#include "util/str.h"

namespace quire {

TransformerConfig TransformerConfig::read(const HfConfig& config, const TransformerDefaults& otherwise) {
  constexpr int32_t kMaxSize = 1 << 24;
  TransformerConfig out;
  out.vocab_size = config.get_int("vocab_size", 1, kMaxSize);
  out.hidden_size = config.get_int("hidden_size", 1, kMaxSize);
  out.intermediate_size = config.get_int("intermediate_size", 1, kMaxSize);
  out.num_layers = config.get_int("num_hidden_layers", 1, 4096);
  out.num_heads = config.get_int("num_attention_heads", 1, 65536);
  const bool has_groups = otherwise.num_kv_heads > 0 && !config.is_null("num_key_value_heads");
  out.num_kv_heads =
      config.get_int("num_key_value_heads", 1, 65536, has_groups ? otherwise.num_kv_heads : out.num_heads);
  const bool has_head_size = config.has("head_dim") || otherwise.head_size > 0;
  if (!has_head_size && out.hidden_size % out.num_heads != 0) {
    config.fail(
        str("'num_attention_heads' ", out.num_heads, " does not divide 'hidden_size' ", out.hidden_size));
  }
  out.head_size = config.get_int(
      "head_dim", 1, 65536, otherwise.head_size > 0 ? otherwise.head_size : out.hidden_size / out.num_heads);
  if (out.num_heads % out.num_kv_heads != 0) {
    config.fail(str("'num_key_value_heads' ", out.num_kv_heads, " does not divide 'num_attention_heads' ",
                    out.num_heads));
  }
  out.norm.eps = config.get_positive("rms_norm_eps", otherwise.norm_eps);
  out.tie_word_embeddings = config.get_bool("tie_word_embeddings", otherwise.tie_word_embeddings);
  return out;
}

void TransformerConfig::check_no_groups(const HfConfig& config) const {
  if (num_kv_heads == num_heads) return;
  config.fail(str("'num_key_value_heads' must be 'num_attention_heads', ", num_heads,
                  ", for this architecture, got ", num_kv_heads));
}

SelfAttentionConfig TransformerConfig::attention(int32_t layer,
                                                 std::shared_ptr<const RotaryEmbedding> rotary) const {
  SelfAttentionConfig out;
  out.layer = layer;
  out.hidden_size = hidden_size;
  out.num_heads = num_heads;
  out.num_kv_heads = num_kv_heads;
  out.head_size = head_size;
  out.scale = static_cast<float>(1.0 / std::sqrt(head_size));
  out.rotary = std::move(rotary);
  return out;
}

GatedMLPConfig TransformerConfig::mlp() const { return {hidden_size, intermediate_size}; }

}  // namespace quire
