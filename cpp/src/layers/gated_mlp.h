// The feed-forward part of a transformer layer: down(activation(gate(x)) * up(x)) (Shazeer, 2020).
#pragma once

#include <cstdint>
#include <string>

#include "layers/activation.h"
#include "layers/linear.h"
#include "quire/export.h"

namespace quire QUIRE_MODEL_API {

struct GatedMLPConfig {
  int32_t hidden_size = 0;
  int32_t intermediate_size = 0;  // of all ranks
  Activation activation = Activation::kSilu;
  bool bias = false;
  // The tensor whose rows are the gate's, then as many of up; empty: "gate_proj" and "up_proj" are two.
  std::string gate_up = {};
};

class GatedMLP {
 public:
  using Config = GatedMLPConfig;

  // "<name>.gate_proj", up_proj, down_proj. Throws InvalidArgument when intermediate_size cannot be divided
  // among the ranks.
  GatedMLP(BuildContext& build, const std::string& name, const GatedMLPConfig& config);

  //   x, out [T, hidden_size]; `out` may be `x`
  void forward(const ForwardContext& ctx, TensorView out, TensorView x) const;
  // What `forward` makes is added to where `to` says, or written; returns which.
  [[nodiscard]] bool forward_add(const ForwardContext& ctx, const Addition& to, TensorView x) const;
  // This rank's part of what `forward` sums over the ranks.
  void forward_part(const ForwardContext& ctx, TensorView out, TensorView x) const;

 private:
  // Calls project(gated) with what the last product reads.
  template <typename F>
  void activate(const ForwardContext& ctx, TensorView x, F project) const;

  Activation activation_;
  Linear gate_up_, down_;
};

}  // namespace quire
