#include "layers/gated_mlp.h"

namespace quire {
namespace {

// The rows of gate and up that are this rank's.
std::vector<LinearPart> gate_up_parts(const std::string& name, const GatedMLPConfig& config,
                                      const Shard& mine) {
  const int64_t total = config.intermediate_size;
  if (config.gate_up.empty()) {
    return {{name + ".gate_proj", total, mine.begin, mine.count},
            {name + ".up_proj", total, mine.begin, mine.count}};
  }
  const std::string both = name + "." + config.gate_up;
  return {{both, 2 * total, mine.begin, mine.count}, {both, 2 * total, total + mine.begin, mine.count}};
}

}  // namespace

GatedMLP::GatedMLP(BuildContext& build, const std::string& name, const GatedMLPConfig& config)
    : activation_(config.activation) {
  const Shard mine = exact_shard(build, config.intermediate_size, "intermediate_size");
  gate_up_ =
      Linear::column_parallel(build, gate_up_parts(name, config, mine), config.hidden_size, config.bias);
  down_ = Linear::row_parallel(build, name + ".down_proj", config.hidden_size, config.intermediate_size,
                               config.bias);
}

void GatedMLP::forward(const ForwardContext& ctx, TensorView out, TensorView x) const {
  forward_part(ctx, out, x);
  ctx.communicator.all_reduce_sum(ctx.launch, out);
}

bool GatedMLP::forward_add(const ForwardContext& ctx, const Addition& to, TensorView x) const {
  bool is_added = false;
  activate(ctx, x, [&](TensorView gated) { is_added = down_.forward_add(ctx, to, gated); });
  return is_added;
}

void GatedMLP::forward_part(const ForwardContext& ctx, TensorView out, TensorView x) const {
  activate(ctx, x, [&](TensorView gated) { down_.forward_part(ctx, out, gated); });
}

template <typename F>
void GatedMLP::activate(const ForwardContext& ctx, TensorView x, F project) const {
  const size_t mark = ctx.arena.mark();
  const TensorView gate_up = ctx.arena.take(x.dtype, x.shape[0], gate_up_.num_outputs());
  const TensorView gated = ctx.arena.take(x.dtype, x.shape[0], gate_up_.num_outputs() / 2);
  gate_up_.forward_gated(ctx, gated, gate_up, x, activation_);
  project(gated);
  ctx.arena.release(mark);
}

}  // namespace quire
