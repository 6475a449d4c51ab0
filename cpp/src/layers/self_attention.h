// The attention part of a transformer layer: projections, what is done to queries and keys, attention over
// the paged KV cache.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "layers/attention.h"
#include "layers/linear.h"
#include "layers/qk_norm.h"
#include "layers/rotary_embedding.h"
#include "quire/export.h"

namespace quire QUIRE_MODEL_API {

// How a checkpoint has the rows that make queries, keys and values.
enum class QkvRows : uint8_t {
  kSeparate,  // "q_proj", "k_proj" and "v_proj"
  kStacked,   // one tensor: of all heads q, then k, then v
  kByHead,    // one tensor: of each head its q, then k, then v; as many KV heads as heads
};

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
  QKNormFactory qk_norm = {};                     // empty: none
  std::shared_ptr<const RotaryEmbedding> rotary;  // null: none
  std::string sinks = {};  // "<name>.<sinks>" [num_heads], an extra score for each head; empty: none
  std::vector<float> alibi_slopes = {};  // of all heads; empty: none
  QkvRows qkv_rows = QkvRows::kSeparate;
  std::string qkv = "qkv_proj", o = "o_proj";  // names; qkv where it is one tensor
  WeightOrder order = WeightOrder::kOutputsFirst;
};

class SelfAttention {
 public:
  // "<name>.q_proj", k_proj, v_proj or "<name>.<qkv>", "<name>.<o>", and what qk_norm loads. Throws
  // InvalidArgument when the heads cannot be divided among the ranks, or the backend has no kernel for this
  // shape.
  SelfAttention(BuildContext& build, const std::string& name, const SelfAttentionConfig& config);

  //   x, out [T, hidden_size], positions [T] int32; or out [R, hidden_size], of ctx.wanted_rows
  void forward(const ForwardContext& ctx, TensorView out, TensorView x, TensorView positions) const;
  // What `forward` makes is added to where `to` says, or written; returns which.
  [[nodiscard]] bool forward_add(const ForwardContext& ctx, const Addition& to, TensorView x,
                                 TensorView positions) const;
  // This rank's part of what `forward` sums over the ranks.
  void forward_part(const ForwardContext& ctx, TensorView out, TensorView x, TensorView positions) const;

  const KVCacheSpec& kv_cache_spec() const { return attention_.kv_cache_spec(); }

 private:
  // Calls project(heads) with what attention makes of x, of the R rows that are wanted; not for none.
  template <typename F>
  void attend(const ForwardContext& ctx, int64_t R, TensorView x, TensorView positions, F project) const;

  HeadShare heads_;
  std::shared_ptr<const RotaryEmbedding> rotary_;
  Linear qkv_, o_;
  std::unique_ptr<QKNorm> qk_norm_;
  Attention attention_;
};

}  // namespace quire
