// One layer's attention over the paged KV cache.
#pragma once

#include <vector>

#include "layers/context.h"
#include "layers/rotary_embedding.h"
#include "messages/kv_cache_spec.h"
#include "quire/export.h"

namespace quire QUIRE_MODEL_API {

struct AttentionConfig {
  int32_t layer = 0;
  int32_t num_heads = 0;     // of this rank
  int32_t num_kv_heads = 0;  // of this rank
  int32_t head_size = 0;
  float scale = 0.0F;
  int32_t sliding_window = 0;            // 0: none
  float soft_cap = 0.0F;                 // 0: none
  std::vector<float> alibi_slopes = {};  // of this rank's heads; empty: none
  // Of this rank's heads: [num_heads] fp32 in the backend's memory, what a head attends to nothing with (Xiao
  // et al., 2024; GPT-OSS); null: none.
  const float* sinks = nullptr;
};

class Attention {
 public:
  // Throws InvalidArgument, with the backend's reason, when it has no kernel for this shape.
  Attention(BuildContext& build, const AttentionConfig& config);

  // Rotates q and k unless `rotary` is null, after norms of their heads if it has some, stores k and v, then
  // attends. q and k are scratch afterwards.
  //   q [T, H, D], k, v [T, KH, D], positions [T] int32; out [T, H, D], or [0, H, D]: only k and v are stored
  void forward(const ForwardContext& ctx, TensorView out, TensorView q, TensorView k, TensorView v,
               const RotaryEmbedding* rotary, const HeadNorms* norms, TensorView positions) const;

  const KVCacheSpec& kv_cache_spec() const { return spec_; }

 private:
  void attend(const ForwardContext& ctx, TensorView out, TensorView q) const;

  int32_t index_;  // of this layer
  AttentionLayer layer_;
  KVCacheSpec spec_;
};

}  // namespace quire
