// Rotary position embeddings (Su et al., 2021), with the scalings transformers knows.
#pragma once

#include <cstdint>
#include <vector>

#include "device/buffer.h"
#include "formats/hf_config.h"
#include "layers/context.h"

namespace quire {

// What config.json says. Frequencies are fixed per engine from max_model_len, because cached keys cannot
// change: `dynamic` and `longrope` use what transformers would use for a sequence of that length.
struct RotaryConfig {
  // Reads rope_parameters (transformers 5), or rope_theta and rope_scaling. Throws InvalidArgument for a
  // missing key, a value out of range, or an unknown rope_type.
  static RotaryConfig read(const HfConfig& config, int32_t head_size, int32_t max_model_len);

  int32_t rotary_dim = 0;
  std::vector<double> inverse_frequencies;  // [rotary_dim / 2], radians a position
  double attention_factor = 1.0;            // scales cosines and sines
};

// Longest sequence that the config's scaling is meant for.
int32_t max_supported_positions(const HfConfig& config);

// The table of cosines and sines; one for all layers.
class RotaryEmbedding {
 public:
  RotaryEmbedding(const RotaryConfig& config, int32_t max_model_len);

  // Rotates in place.   q [T, H, D], k [T, KH, D], positions [T] int32
  void forward(const ForwardContext& ctx, TensorView q, TensorView k, TensorView positions) const {
    ctx.ops.rotary_embedding(ctx.launch, q, k, positions, cos_sin_);
  }

 private:
  Buffer buffer_;
  TensorView cos_sin_;  // [max_model_len, rotary_dim] fp32
};

}  // namespace quire
