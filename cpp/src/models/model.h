// What the worker asks of a model, whatever its architecture.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "layers/context.h"
#include "messages/kv_cache_spec.h"
#include "quire/export.h"

namespace quire QUIRE_MODEL_API {

struct ModelInput {
  TensorView input_ids;  // [T] int32
  TensorView positions;  // [T] int32, or [3, T]: time, height and width of multimodal rotary embeddings
  // [T, hidden_size] in the model's dtype, read instead of input_ids where it has data; overwritten.
  TensorView inputs_embeds = {};
  // [1] int32 in the kernels' memory, at the same address in every step: the tokens from there on, up to T,
  // are padding of a graph and belong to nobody. For ops in which tokens influence each other, like routing
  // to experts: a graph reads it when it is replayed. Without data nothing is padded.
  TensorView num_tokens = {};
  // [R] int32, ascending, at most half of T: the rows whose hidden states are wanted; none: all. The last
  // layer may leave out what only others need: of a prompt, all but what its last token's logits come from.
  std::optional<TensorView> wanted_rows = {};
};

// One rank's share of a loaded model. Used on the rank's own thread.
class Model {
 public:
  virtual ~Model() = default;

  virtual int32_t vocab_size() const = 0;
  virtual int32_t hidden_size() const = 0;

  // What each layer asks of the KV cache, in layer order.
  virtual std::vector<KVCacheSpec> kv_cache_specs() const = 0;

  // Hidden states [T, hidden_size] after the last norm, in the arena; or [R, hidden_size] of the rows that
  // are wanted, where the model leaves out others.
  virtual TensorView forward(const ForwardContext& ctx, const ModelInput& input) const = 0;

  //   hidden [R, hidden_size], logits [R, vocab_size] fp32, of all ranks; or [R, count] of this rank's part
  //   of the vocabulary, of which each has as many but that the last ones of the last rank may be padding
  virtual void compute_logits(const ForwardContext& ctx, TensorView logits, TensorView hidden) const = 0;
};

}  // namespace quire
