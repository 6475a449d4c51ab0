#include "layers/gated_mlp.h"

#include <array>

#include "util/check.h"

namespace quire {

Activation read_activation(const HfConfig& config, const std::string& key, const std::string& otherwise) {
  constexpr std::array<std::pair<const char*, Activation>, 3> kNames = {
      {{"silu", Activation::kSilu},
       {"gelu", Activation::kGelu},
       {"gelu_pytorch_tanh", Activation::kGeluTanh}}};
  const std::string found = config.get_string(key, otherwise);
  for (const auto& [name, activation] : kNames) {
    if (found == name) return activation;
  }
  config.fail("'" + key + "' '" + found + "' is not supported; supported: silu, gelu, gelu_pytorch_tanh");
}

GatedMLP::GatedMLP(BuildContext& build, const std::string& name, const GatedMLPConfig& config)
    : activation_(config.activation) {
  const int64_t total = config.intermediate_size;
  if (total % build.world_size != 0) {
    throw InvalidArgument(
        str("tensor_parallel_size ", build.world_size, " does not divide intermediate_size ", total));
  }
  const Shard mine = even_shard(total, build.rank, build.world_size);
  gate_up_ = Linear::column_parallel(build,
                                     {{name + ".gate_proj", total, mine.begin, mine.count},
                                      {name + ".up_proj", total, mine.begin, mine.count}},
                                     config.hidden_size, config.bias);
  down_ = Linear::row_parallel(build, name + ".down_proj", config.hidden_size, total, config.bias);
}

void GatedMLP::forward(const ForwardContext& ctx, TensorView out, TensorView x) const {
  const size_t mark = ctx.arena.mark();
  const TensorView gate_up = ctx.arena.take(x.dtype, x.shape[0], gate_up_.num_outputs());
  const TensorView gated = ctx.arena.take(x.dtype, x.shape[0], gate_up_.num_outputs() / 2);
  gate_up_.forward(ctx, gate_up, x);
  switch (activation_) {
    case Activation::kSilu: ctx.ops.silu_and_mul(ctx.launch, gated, gate_up); break;
    case Activation::kGelu:
      ctx.ops.gelu_and_mul(ctx.launch, gated, gate_up, /*tanh_approximation=*/false);
      break;
    case Activation::kGeluTanh:
      ctx.ops.gelu_and_mul(ctx.launch, gated, gate_up, /*tanh_approximation=*/true);
      break;
  }
  down_.forward(ctx, out, gated);
  ctx.arena.release(mark);
}

}  // namespace quire
