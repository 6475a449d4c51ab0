// The feed-forward part of a transformer layer without a gate: down(activation(up(x))) (Vaswani et al.,
// 2017).
#pragma once

#include <cstdint>
#include <string>

#include "layers/activation.h"
#include "layers/linear.h"
#include "quire/export.h"

namespace quire QUIRE_MODEL_API {

struct MLPConfig {
  int32_t hidden_size = 0;
  int32_t intermediate_size = 0;  // of all ranks
  Activation activation = Activation::kGelu;
  bool bias = true;
  std::string up = "up_proj", down = "down_proj";
  WeightOrder order = WeightOrder::kOutputsFirst;
};

class MLP {
 public:
  using Config = MLPConfig;

  // "<name>.<up>", "<name>.<down>". Throws InvalidArgument when intermediate_size cannot be divided among the
  // ranks.
  MLP(BuildContext& build, const std::string& name, const MLPConfig& config);

  //   x, out [T, hidden_size]; `out` may be `x`
  void forward(const ForwardContext& ctx, TensorView out, TensorView x) const;
  // What `forward` makes is added to where `to` says, or written; returns which.
  [[nodiscard]] bool forward_add(const ForwardContext& ctx, const Addition& to, TensorView x) const;
  // This rank's part of what `forward` sums over the ranks.
  void forward_part(const ForwardContext& ctx, TensorView out, TensorView x) const;

 private:
  // Calls project(activated) with what the last product reads.
  template <typename F>
  void activate(const ForwardContext& ctx, TensorView x, F project) const;

  Activation activation_;
  Linear up_, down_;
};

}  // namespace quire
