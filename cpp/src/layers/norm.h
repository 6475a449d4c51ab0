// Norms over the last dimension: RMSNorm (Zhang and Sennrich, 2019) and LayerNorm (Ba et al., 2016).
#pragma once

#include <cstdint>
#include <string>

#include "layers/context.h"
#include "layers/parameter.h"
#include "quire/export.h"

namespace quire QUIRE_MODEL_API {

struct NormConfig {
  enum class Kind : uint8_t {
    kRms,    // x / rms(x) * (weight_offset + weight)
    kLayer,  // (x - mean(x)) / deviation(x) * weight + bias
  };
  Kind kind = Kind::kRms;
  double eps = 0.0;
  float weight_offset = 0.0F;  // 0 or 1; of kRms
  bool bias = true;            // of kLayer
};

class Norm {
 public:
  Norm() = default;
  // "<name>.weight" [size], of a LayerNorm with a bias "<name>.bias".
  Norm(BuildContext& build, const std::string& name, int64_t size, const NormConfig& config);

  // `out` may be `x`. Of a LayerNorm x [T, size], else also [T, heads, size].
  void forward(const ForwardContext& ctx, TensorView out, TensorView x) const;
  TensorView weight() const { return weight_.view(); }
  // residual += x; out = norm(residual)
  void forward_add(const ForwardContext& ctx, TensorView out, TensorView residual, TensorView x) const;
  // residual += x_norm(x); out = norm(residual). x is left in any state.
  void forward_norm_add(const ForwardContext& ctx, TensorView out, TensorView residual, TensorView x,
                        const Norm& x_norm) const;

 private:
  RmsNormParams rms_params() const { return {weight_.view(), eps_, weight_offset_}; }

  NormConfig::Kind kind_ = NormConfig::Kind::kRms;
  Parameter weight_, bias_;  // bias_ without data where there is none
  float eps_ = 0.0F;
  float weight_offset_ = 0.0F;
};

}  // namespace quire
