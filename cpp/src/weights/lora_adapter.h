// A LoRA adapter of a model, as PEFT (huggingface/peft) saves it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "quire/export.h"
#include "quire/kernels/tensor_view.h"
#include "weights/checkpoint.h"

namespace quire QUIRE_MODEL_API {

// What is added to the output of one of the model's linears for an input x: scale * b (a x); or to one of
// each expert of a mixture, where these are one parameter. Expert e has of `a` rank rows from e * rank on,
// and of `b` every num_experts-th column from e on.
struct LoraAdapterModule {
  std::string name;         // of the linear, "model.layers.0.self_attn.q_proj", or the parameter
  int32_t rank = 0;         // at least 1; of one expert
  int32_t num_experts = 0;  // 0: it is of a linear; 1: of a linear, or of a mixture of one
  float scale = 0;          // finite and above zero
  // [rank, inputs] and [outputs, rank], of a parameter num_experts times the ranks; not empty, in float32,
  // float16 or bfloat16. Where they lie, as Checkpoint::take gives it: the values are to be had from
  // Checkpoint::read.
  TensorView a, b;
};

// A directory with adapter_config.json and adapter_model.safetensors. What it adds to a model is what PEFT
// would: an adapter that does anything else as well is refused. Whether the model has such modules, of these
// shapes, and whether a rank is too large, is for the caller to say.
//
// Immutable. The modules' values lie in the checkpoint, which goes with the object.
class LoraAdapter {
 public:
  // Throws InvalidArgument naming the file, and the key or the tensor, for what is missing, contradictory or
  // not supported. No value of a tensor is read.
  static LoraAdapter open(const std::string& directory);

  // At least one; sorted by name, and no name twice.
  const std::vector<LoraAdapterModule>& modules() const { return modules_; }
  int32_t max_rank() const { return max_rank_; }
  // The model it was trained for, as its config has it: a name or a path, or empty.
  const std::string& base_model() const { return base_model_; }
  // Of the modules' tensors and no others.
  const Checkpoint& checkpoint() const { return checkpoint_; }
  // The same as long as nobody has changed the config or written the tensors' file.
  const std::string& stamp() const { return stamp_; }
  // What it computes, as text: the same for the same modules, scales and values, wherever they lie. Reads all
  // of it, on so many threads, and throws as Checkpoint::read.
  std::string fingerprint(size_t num_threads) const;

 private:
  explicit LoraAdapter(Checkpoint checkpoint) : checkpoint_(std::move(checkpoint)) {}

  Checkpoint checkpoint_;
  std::vector<LoraAdapterModule> modules_;
  int32_t max_rank_ = 0;
  std::string base_model_;
  std::string stamp_;
};

}  // namespace quire
