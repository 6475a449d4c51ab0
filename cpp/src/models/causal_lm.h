// What language models have in common: an embedding, a stack of layers, a norm and a head. An architecture
// hands over its layers, and overrides what it does otherwise.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "layers/residual_stream.h"
#include "layers/vocab_parallel.h"
#include "models/model.h"
#include "models/transformer_config.h"

namespace quire {

class DecoderLayer {
 public:
  virtual ~DecoderLayer() = default;
  virtual const KVCacheSpec& kv_cache_spec() const = 0;
  virtual void forward(const ForwardContext& ctx, ResidualStream& stream, const ModelInput& input) const = 0;
};

class CausalLM : public Model {
 public:
  using LayerFactory = std::function<std::unique_ptr<DecoderLayer>(int32_t layer)>;

  // "model.embed_tokens", "model.norm", and "lm_head" unless it is tied; `make_layer` loads each layer in
  // turn. Throws InvalidArgument when the checkpoint has a tensor that nobody took.
  CausalLM(BuildContext& build, const TransformerConfig& config, const LayerFactory& make_layer);

  int32_t vocab_size() const override { return vocab_size_; }
  int32_t hidden_size() const override { return hidden_size_; }
  std::vector<KVCacheSpec> kv_cache_specs() const override;
  TensorView forward(const ForwardContext& ctx, const ModelInput& input) const override;
  void compute_logits(const ForwardContext& ctx, TensorView logits, TensorView hidden) const override;

 protected:
  // The layers' first input: out [T, hidden_size] from input_ids [T].
  virtual void embed(const ForwardContext& ctx, TensorView out, TensorView input_ids) const;

 private:
  int32_t vocab_size_, hidden_size_;
  DType dtype_;
  VocabParallelEmbedding embed_tokens_;
  std::vector<std::unique_ptr<DecoderLayer>> layers_;
  RMSNorm norm_;
  std::optional<ParallelLMHead> lm_head_;  // absent when it is tied to the embedding
};

// "model.layers.<layer>", of which the names of a layer's parameters begin.
std::string layer_name(int32_t layer);

}  // namespace quire
