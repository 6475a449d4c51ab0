// The attention part of a transformer layer: projections, what is done to queries and keys, attention over
// the paged KV cache.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "layers/attention.h"
#include "layers/linear.h"
#include "layers/rms_norm.h"
#include "layers/rotary_embedding.h"

namespace quire {

struct SelfAttentionConfig {
  int32_t layer = 0;  // of the model: which KV cache is its own
  int32_t hidden_size = 0;
  int32_t num_heads = 0;     // of all ranks
  int32_t num_kv_heads = 0;  // of all ranks
  int32_t head_size = 0;
  float scale = 0.0F;          // of the products of queries and keys
  int32_t sliding_window = 0;  // 0: none
  float soft_cap = 0.0F;       // 0: none
  bool qkv_bias = false;
  bool o_bias = false;
  std::optional<RMSNormConfig> qk_norm;  // over each head of q and k, before the rotation
  std::shared_ptr<const RotaryEmbedding> rotary;
};

class SelfAttention {
 public:
  // "<name>.q_proj", k_proj, v_proj, o_proj, with a qk_norm q_norm and k_norm. Throws InvalidArgument when
  // the heads cannot be divided among the ranks, or the backend has no kernel for this shape.
  SelfAttention(BuildContext& build, const std::string& name, const SelfAttentionConfig& config);

  //   x, out [T, hidden_size], positions [T] int32
  void forward(const ForwardContext& ctx, TensorView out, TensorView x, TensorView positions) const;

  const KVCacheSpec& kv_cache_spec() const { return attention_.kv_cache_spec(); }

 private:
  // Heads of this rank. KV heads fewer than ranks are held by several.
  struct Heads {
    Heads(const BuildContext& build, const SelfAttentionConfig& config);
    int64_t num, first, num_kv, first_kv;
  };

  Heads heads_;
  int64_t head_size_;
  std::shared_ptr<const RotaryEmbedding> rotary_;
  Linear qkv_, o_;
  std::optional<RMSNorm> q_norm_, k_norm_;
  Attention attention_;
};

}  // namespace quire
