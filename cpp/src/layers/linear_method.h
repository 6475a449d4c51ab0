// How a linear's weight is stored and applied.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "layers/context.h"
#include "quire/export.h"

namespace quire QUIRE_MODEL_API {

// How a checkpoint has the weight of a linear.
enum class WeightOrder : uint8_t {
  kOutputsFirst,  // [outputs, inputs], torch's
  kInputsFirst,   // [inputs, outputs], as GPT-2 has them
};

// A run of rows of one linear of the checkpoint, "<name>.weight" [total_rows, total_k] where it is plain.
struct LinearPart {
  std::string name;
  int64_t total_rows = 0;
  int64_t row_begin = 0;
  int64_t num_rows = 0;
  WeightOrder order = WeightOrder::kOutputsFirst;
};

// One rank's share of one product: rows of one or more parts, stacked, and a run of their columns.
struct LinearShard {
  std::vector<LinearPart> parts;
  int64_t num_zero_rows = 0;  // behind the parts' rows: no checkpoint has them, they multiply to zero
  int64_t total_k = 0;
  int64_t k_begin = 0;
  int64_t k = 0;
  int64_t max_rows = 0;  // of the inputs of one product

  int64_t n() const;
};

// Loads itself when it is made: plain here; quantized formats are other implementations.
class LinearMethod {
 public:
  virtual ~LinearMethod() = default;
  // out[t, :] = x[t, :] * weight^T (+ bias).   x [T, k], out [T, n], bias [n] fp32 or null
  virtual void apply(const ForwardContext& ctx, TensorView out, TensorView x, const float* bias) const = 0;
  // sum += that, where KernelTable::linear_add does it; else false, and nothing has happened. `scratch` is as
  // `sum`.
  virtual bool apply_add(const ForwardContext& ctx, TensorView sum, TensorView scratch, TensorView x,
                         const float* bias) const;
  // activate_and_mul of what apply makes, in `out` [T, n / 2]; y [T, n] is scratch.
  virtual void apply_gated(const ForwardContext& ctx, TensorView out, TensorView y, TensorView x,
                           const float* bias, Activation activation) const;
  // The same two with what adapters add to y: apply makes it in args.out, of args.x.
  void apply_lora(const ForwardContext& ctx, const LoraArgs& args, const float* bias) const;
  void apply_lora_gated(const ForwardContext& ctx, TensorView out, const LoraArgs& args, const float* bias,
                        Activation activation) const;

 protected:
  // What KernelTable::linear takes, where that is all it does; or null.
  virtual const LinearWeight* weight() const { return nullptr; }
};

// The method that build.quantization has for the parts' names, else the model's dtype. Takes the parts'
// tensors from build.checkpoint, but for their biases, and grows build.workspace_bytes. Throws
// InvalidArgument for a tensor that is missing or of another shape or dtype, and for parts of one product
// that are not quantized alike.
std::unique_ptr<LinearMethod> make_linear_method(BuildContext& build, const LinearShard& shard);

// Elements in the model's dtype.
std::unique_ptr<LinearMethod> make_unquantized_linear_method(BuildContext& build, const LinearShard& shard);

}  // namespace quire
