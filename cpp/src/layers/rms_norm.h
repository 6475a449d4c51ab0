#pragma once

#include <string>

#include "layers/context.h"
#include "layers/parameter.h"

namespace quire {

// x / rms(x) * (weight_offset + weight), over the last dimension.
struct RMSNormConfig {
  double eps = 0.0;
  float weight_offset = 0.0F;  // 0 or 1
};

class RMSNorm {
 public:
  RMSNorm() = default;
  // "<name>.weight" [size]
  RMSNorm(BuildContext& build, const std::string& name, int64_t size, const RMSNormConfig& config)
      : weight_(build, name + ".weight", size, /*dummy_center=*/1.0F - config.weight_offset),
        eps_(static_cast<float>(config.eps)),
        weight_offset_(config.weight_offset) {}

  // `out` may be `x`.
  void forward(const ForwardContext& ctx, TensorView out, TensorView x) const {
    ctx.ops.rms_norm(ctx.launch, out, x, weight_.view(), eps_, weight_offset_);
  }
  // residual += x; out = norm(residual)
  void forward_add(const ForwardContext& ctx, TensorView out, TensorView residual, TensorView x) const {
    ctx.ops.fused_add_rms_norm(ctx.launch, out, residual, x, weight_.view(), eps_, weight_offset_);
  }

 private:
  Parameter weight_;
  float eps_ = 0.0F;
  float weight_offset_ = 0.0F;
};

}  // namespace quire
