// Matrix products with weights from a checkpoint, each rank holding its share.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "layers/linear_method.h"
#include "quire/export.h"

namespace quire QUIRE_MODEL_API {

// What a part of a layer adds to a sum. It either writes it to `out`, for somebody else to add, and returns
// false, or has added it to `sum`, and returns true; what `out` holds is nothing then.
struct Addition {
  TensorView out, sum;  // [T, hidden_size]
};

// One or more tensors' rows, stacked into one product.
class Linear {
 public:
  Linear() = default;

  // Outputs are split over the ranks: the caller says which rows of each part are this rank's. Needs no
  // communication. With `bias`, "<name>.bias" of every part.
  static Linear column_parallel(BuildContext& build, const std::vector<LinearPart>& parts, int64_t k,
                                bool bias);

  // Every rank has all of it. With `bias`, "<name>.bias".
  static Linear replicated(BuildContext& build, const std::string& name, int64_t n, int64_t k, bool bias);

  // Inputs are split evenly over the ranks, whose outputs are summed. The bias is added by rank 0.
  static Linear row_parallel(BuildContext& build, const std::string& name, int64_t n, int64_t k, bool bias,
                             WeightOrder order = WeightOrder::kOutputsFirst);

  //   x [T, k of this rank], out [T, n of this rank]. Row-parallel linears sum over the ranks before
  //   returning.
  void forward(const ForwardContext& ctx, TensorView out, TensorView x) const;
  // This rank's part of that sum.
  void forward_part(const ForwardContext& ctx, TensorView out, TensorView x) const;

  // What `forward` makes is added to where `to` says, or written; returns which (Addition).
  [[nodiscard]] bool forward_add(const ForwardContext& ctx, const Addition& to, TensorView x) const;

  // activate_and_mul of what `forward` makes; not of a row-parallel linear.
  //   out [T, n / 2], scratch y [T, n]
  void forward_gated(const ForwardContext& ctx, TensorView out, TensorView y, TensorView x,
                     Activation activation) const;

  int64_t num_outputs() const { return n_; }

 private:
  Linear(BuildContext& build, const LinearShard& shard, bool bias, bool reduce);

  // Whether the step has adapters, and this is a target of theirs.
  bool has_lora(const ForwardContext& ctx) const;

  int64_t n_ = 0;
  int32_t lora_target_ = -1;  // in LoraTargets; -1: there are no adapters
  bool reduce_ = false;
  const float* bias_ = nullptr;  // [n], in the backend's memory; null: none
  std::unique_ptr<LinearMethod> method_;
};

// Rows [begin, begin + count) of `total` that are this rank's; every rank has as many, so the last may reach
// past the end.
struct Shard {
  int64_t begin = 0;
  int64_t count = 0;
};
Shard even_shard(int64_t total, int32_t rank, int32_t world_size);

// The same where nothing may reach past the end: throws InvalidArgument when the ranks do not divide `total`,
// which config.json calls `key`.
Shard exact_shard(const BuildContext& build, int64_t total, const char* key);

}  // namespace quire
