// What language models have in common: an embedding, a stack of layers, a norm and a head. An architecture
// hands over its layers, and overrides what it does otherwise.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "layers/residual_stream.h"
#include "layers/vocab_parallel.h"
#include "models/model.h"
#include "models/transformer_config.h"
#include "quire/export.h"

namespace quire QUIRE_MODEL_API {

class DecoderLayer {
 public:
  virtual ~DecoderLayer() = default;
  virtual const KVCacheSpec& kv_cache_spec() const = 0;
  virtual void forward(const ForwardContext& ctx, ResidualStream& stream, const ModelInput& input) const = 0;
};

// What a checkpoint calls the parts of the whole.
struct CausalLMNames {
  std::string embed_tokens = "model.embed_tokens";
  std::string norm = "model.norm";
  std::string lm_head = "lm_head";
};

class CausalLM : public Model {
 public:
  using LayerFactory = std::function<std::unique_ptr<DecoderLayer>(int32_t layer)>;

  // The parts of `names`, the head unless it is tied; `make_layer` loads each layer in turn.
  CausalLM(BuildContext& build, const TransformerConfig& config, const LayerFactory& make_layer,
           const CausalLMNames& names = {});

  int32_t vocab_size() const override { return vocab_size_; }
  int32_t hidden_size() const override { return hidden_size_; }
  std::vector<KVCacheSpec> kv_cache_specs() const override;
  TensorView forward(const ForwardContext& context, const ModelInput& input) const override;
  void compute_logits(const ForwardContext& ctx, TensorView logits, TensorView hidden) const override;

 protected:
  // The layers' first input: out [T, hidden_size] from input.input_ids [T].
  virtual void embed(const ForwardContext& ctx, TensorView out, const ModelInput& input) const;

 private:
  int32_t vocab_size_, hidden_size_;
  DType dtype_;
  VocabParallelEmbedding embed_tokens_;
  std::vector<std::unique_ptr<DecoderLayer>> layers_;
  Norm norm_;
  std::optional<ParallelLMHead> lm_head_;  // absent when it is tied to the embedding
};

// "model.layers.<layer>", with which the names of a layer's parameters begin.
std::string layer_name(int32_t layer);

// Of a checkpoint that was saved without its head, names lack their first part: "" where `name` is there
// without it, else `prefix`.
std::string find_prefix(const BuildContext& build, const std::string& prefix, const std::string& name);

}  // namespace quire
