// The feed-forward part of a transformer layer: down(activation(gate(x)) * up(x)) (Shazeer, 2020).
#pragma once

#include <cstdint>
#include <string>

#include "formats/hf_config.h"
#include "layers/linear.h"

namespace quire {

enum class Activation : uint8_t { kSilu, kGelu, kGeluTanh };

// By the names of transformers: "silu", "gelu", "gelu_pytorch_tanh". Throws InvalidArgument for another one.
Activation read_activation(const HfConfig& config, const std::string& key, const std::string& otherwise);

struct GatedMLPConfig {
  int32_t hidden_size = 0;
  int32_t intermediate_size = 0;  // of all ranks
  Activation activation = Activation::kSilu;
  bool bias = false;
};

class GatedMLP {
 public:
  // "<name>.gate_proj", up_proj, down_proj. Throws InvalidArgument when intermediate_size cannot be divided
  // among the ranks.
  GatedMLP(BuildContext& build, const std::string& name, const GatedMLPConfig& config);

  //   x, out [T, hidden_size]; `out` may be `x`
  void forward(const ForwardContext& ctx, TensorView out, TensorView x) const;

 private:
  Activation activation_;
  Linear gate_up_, down_;
};

}  // namespace quire
