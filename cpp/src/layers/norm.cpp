#include "layers/norm.h"

namespace quire {

Norm::Norm(BuildContext& build, const std::string& name, int64_t size, const NormConfig& config)
    : kind_(config.kind),
      weight_(build, name + ".weight", size, /*dummy_center=*/1.0F - config.weight_offset),
      eps_(static_cast<float>(config.eps)),
      weight_offset_(config.weight_offset) {
  if (kind_ == NormConfig::Kind::kLayer && config.bias) bias_ = Parameter(build, name + ".bias", size);
}

void Norm::forward(const ForwardContext& ctx, TensorView out, TensorView x) const {
  if (kind_ == NormConfig::Kind::kLayer) {
    ctx.ops.layer_norm(ctx.launch, out, x, weight_.view(), bias_.view(), eps_);
  } else {
    ctx.ops.rms_norm(ctx.launch, out, x, weight_.view(), eps_, weight_offset_);
  }
}

void Norm::forward_add(const ForwardContext& ctx, TensorView out, TensorView residual, TensorView x) const {
  if (kind_ == NormConfig::Kind::kLayer) {
    ctx.ops.add(ctx.launch, residual, x);
    forward(ctx, out, residual);
  } else {
    ctx.ops.fused_add_rms_norm(ctx.launch, out, residual, x, weight_.view(), eps_, weight_offset_);
  }
}

void Norm::forward_norm_add(const ForwardContext& ctx, TensorView out, TensorView residual, TensorView x,
                            const Norm& x_norm) const {
  const bool both_rms = kind_ == NormConfig::Kind::kRms && x_norm.kind_ == NormConfig::Kind::kRms;
  if (both_rms && ctx.ops.fused_norm_add_rms_norm != nullptr) {
    ctx.ops.fused_norm_add_rms_norm(ctx.launch, out, residual, x, x_norm.rms_params(), rms_params());
  } else {
    x_norm.forward(ctx, x, x);
    forward_add(ctx, out, residual, x);
  }
}

}  // namespace quire
