// How the weights of a mixture's experts are stored and applied.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "layers/context.h"
#include "layers/linear.h"
#include "quire/export.h"

namespace quire QUIRE_MODEL_API {

// One expert's tensors as the checkpoint has them, or rows and columns of these: of all ranks.
struct ExpertTensors {
  TensorView gate, up;            // [intermediate_size, hidden_size]
  TensorView down;                // [hidden_size, intermediate_size]
  TensorView gate_bias, up_bias;  // [intermediate_size], where there are biases
  TensorView down_bias;           // [hidden_size]
};

// Takes the tensors of one expert of the mixture called `name`.
using ExpertSource =
    std::function<ExpertTensors(Checkpoint& checkpoint, const std::string& name, int32_t expert)>;

// What adapters call the linears of one expert, "<name>.experts.<expert>.<gate>"; those of all experts are
// "<name>.experts.gate_up_proj" and "<name>.experts.down_proj".
struct ExpertNames {
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";
  bool take_turns = false;  // outputs of gate_up_proj: one of the gate's, one of up's
};

struct ExpertsShard {
  std::string name;  // of the mixture
  int32_t num_experts = 0;
  int32_t top_k = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;  // of all ranks
  bool bias = false;
  Shard mine;  // which of intermediate_size are this rank's
  Activation activation = Activation::kSilu;
  ExpertSource source;
  ExpertNames names;
  bool source_knows_mxfp4 = false;  // as QuantizationConfig::has_mxfp4_experts has them
  int64_t max_rows = 0;
};

// Loads itself when it is made: plain here; quantized formats are other implementations.
class ExpertsMethod {
 public:
  virtual ~ExpertsMethod() = default;
  // Chooses each token's experts, as `routing` says, and computes this rank's part of the sum over them.
  //   x, out [T, hidden_size]
  virtual void apply(const ForwardContext& ctx, TensorView out, TensorView x,
                     const ExpertRoutingArgs& routing) const = 0;
};

// Elements in the model's dtype. Throws InvalidArgument for a tensor that is missing or misshapen, when the
// backend has no kernels for mixtures, and for experts that are quantized as the source does not know.
std::unique_ptr<ExpertsMethod> make_experts_method(BuildContext& build, const ExpertsShard& shard);

// The matrix or row of one expert, of a tensor that has one for each.
TensorView of_expert(TensorView all, int32_t expert);

// "<name>.experts.<expert>.<gate>.weight" and so on, each [outputs, inputs]; or, as transformers has them in
// memory, "<name>.experts.gate_up_proj" and "<name>.experts.down_proj", as experts_in_one takes them.
ExpertSource experts_by_number(int64_t num_experts, int64_t hidden_size, int64_t intermediate_size,
                               const std::string& gate, const std::string& up, const std::string& down);

// "<name>.<gate_up>" [E, 2 I, H], the gate's rows first, and "<name>.<down>" [E, H, I].
ExpertSource experts_in_one(int64_t num_experts, int64_t hidden_size, int64_t intermediate_size,
                            const std::string& gate_up, const std::string& down);

}  // namespace quire
