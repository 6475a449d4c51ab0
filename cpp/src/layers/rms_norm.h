#pragma once

#include <string>

#include "layers/context.h"
#include "layers/parameter.h"

namespace quire {

// x / rms(x) * weight, over the last dimension.
class RMSNorm {
 public:
  RMSNorm() = default;
  // "<name>.weight" [size]
  RMSNorm(BuildContext& build, const std::string& name, int64_t size, double eps)
      : weight_(build, name + ".weight", size, /*dummy_center=*/1.0F), eps_(static_cast<float>(eps)) {}

  void forward(const ForwardContext& ctx, TensorView out, TensorView x) const {
    ctx.ops.rms_norm(ctx.launch, out, x, weight_.view(), eps_, 0.0F);
  }
  // residual += x; out = norm(residual)
  void forward_add(const ForwardContext& ctx, TensorView out, TensorView residual, TensorView x) const {
    ctx.ops.fused_add_rms_norm(ctx.launch, out, residual, x, weight_.view(), eps_, 0.0F);
  }

 private:
  Parameter weight_;
  float eps_ = 0.0F;
};

}  // namespace quire
