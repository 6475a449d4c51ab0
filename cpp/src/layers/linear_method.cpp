#include "layers/linear_method.h"

#include "layers/dense_weight.h"
#include "layers/quantization.h"
#include "util/check.h"

namespace quire {
namespace {

class UnquantizedLinearMethod final : public LinearMethod {
 public:
  UnquantizedLinearMethod(BuildContext& build, const LinearShard& shard)
      : weight_(DenseWeight::for_products(build, shard.n(), shard.k, shard.max_rows)) {
    int64_t row = 0;
    for (const LinearPart& part : shard.parts) {
      const TensorView all = take(build, part, shard.total_k);
      if (part.num_rows > 0) {
        const TensorView rows = slice_rows(all, part.row_begin, part.num_rows);
        weight_.load_rows(build, row, slice_columns(rows, shard.k_begin, shard.k));
      }
      row += part.num_rows;
    }
    if (shard.num_zero_rows > 0) weight_.zero_rows(build, row, shard.num_zero_rows);
  }

  void apply(const ForwardContext& ctx, TensorView out, TensorView x, const float* bias) const override {
    const LinearWeight& weight = weight_.view();
    QUIRE_CHECK(x.shape[1] == weight.k && out.shape[1] == weight.n && x.shape[0] == out.shape[0]);
    ctx.ops.linear(ctx.launch, out, x, weight, bias);
  }

  bool apply_add(const ForwardContext& ctx, TensorView sum, TensorView scratch, TensorView x,
                 const float* bias) const override {
    const LinearWeight& weight = weight_.view();
    QUIRE_CHECK(x.shape[1] == weight.k && sum.shape[1] == weight.n && x.shape[0] == sum.shape[0]);
    return ctx.ops.linear_add != nullptr && ctx.ops.linear_add(ctx.launch, sum, scratch, x, weight, bias);
  }

  void apply_gated(const ForwardContext& ctx, TensorView out, TensorView y, TensorView x, const float* bias,
                   Activation activation) const override {
    if (ctx.ops.linear_activate_and_mul == nullptr)
      return LinearMethod::apply_gated(ctx, out, y, x, bias, activation);
    const LinearWeight& weight = weight_.view();
    QUIRE_CHECK(x.shape[1] == weight.k && 2 * out.shape[1] == weight.n && x.shape[0] == out.shape[0]);
    ctx.ops.linear_activate_and_mul(ctx.launch, out, y, x, weight, bias, activation);
  }

 protected:
  const LinearWeight* weight() const override { return &weight_.view(); }

 private:
  static TensorView take(BuildContext& build, const LinearPart& part, int64_t k) {
    const std::string name = part.name + ".weight";
    if (part.order == WeightOrder::kOutputsFirst) return build.checkpoint.take(name, {part.total_rows, k});
    return transposed(build.checkpoint.take(name, {k, part.total_rows}));
  }

  DenseWeight weight_;
};

}  // namespace

bool LinearMethod::apply_add(const ForwardContext&, TensorView, TensorView, TensorView, const float*) const {
  return false;
}

void LinearMethod::apply_gated(const ForwardContext& ctx, TensorView out, TensorView y, TensorView x,
                               const float* bias, Activation activation) const {
  apply(ctx, y, x, bias);
  ctx.ops.activate_and_mul(ctx.launch, out, y, activation);
}

void LinearMethod::apply_lora(const ForwardContext& ctx, const LoraArgs& args, const float* bias) const {
  if (ctx.ops.linear_add_lora != nullptr && weight() != nullptr)
    return ctx.ops.linear_add_lora(ctx.launch, *weight(), bias, args);
  apply(ctx, args.out, args.x, bias);
  ctx.ops.add_lora(ctx.launch, args);
}

void LinearMethod::apply_lora_gated(const ForwardContext& ctx, TensorView out, const LoraArgs& args,
                                    const float* bias, Activation activation) const {
  if (ctx.ops.linear_add_lora != nullptr && weight() != nullptr)
    return ctx.ops.linear_add_lora_activate_and_mul(ctx.launch, out, *weight(), bias, args, activation);
  apply_lora(ctx, args, bias);
  ctx.ops.activate_and_mul(ctx.launch, out, args.out, activation);
}

int64_t LinearShard::n() const {
  int64_t n = num_zero_rows;
  for (const LinearPart& part : parts) n += part.num_rows;
  return n;
}

std::unique_ptr<LinearMethod> make_unquantized_linear_method(BuildContext& build, const LinearShard& shard) {
  return std::make_unique<UnquantizedLinearMethod>(build, shard);
}

std::unique_ptr<LinearMethod> make_linear_method(BuildContext& build, const LinearShard& shard) {
  return build.quantization != nullptr ? build.quantization->make_linear_method(build, shard)
                                       : make_unquantized_linear_method(build, shard);
}

}  // namespace quire
