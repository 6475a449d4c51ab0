#include "layers/mlp.h"

namespace quire {

MLP::MLP(BuildContext& build, const std::string& name, const MLPConfig& config)
    : activation_(config.activation) {
  const int64_t total = config.intermediate_size;
  const Shard mine = exact_shard(build, total, "intermediate_size");
  up_ =
      Linear::column_parallel(build, {{name + "." + config.up, total, mine.begin, mine.count, config.order}},
                              config.hidden_size, config.bias);
  down_ = Linear::row_parallel(build, name + "." + config.down, config.hidden_size, total, config.bias,
                               config.order);
}

void MLP::forward(const ForwardContext& ctx, TensorView out, TensorView x) const {
  forward_part(ctx, out, x);
  ctx.communicator.all_reduce_sum(ctx.launch, out);
}

bool MLP::forward_add(const ForwardContext& ctx, const Addition& to, TensorView x) const {
  bool is_added = false;
  activate(ctx, x, [&](TensorView activated) { is_added = down_.forward_add(ctx, to, activated); });
  return is_added;
}

void MLP::forward_part(const ForwardContext& ctx, TensorView out, TensorView x) const {
  activate(ctx, x, [&](TensorView activated) { down_.forward_part(ctx, out, activated); });
}

template <typename F>
void MLP::activate(const ForwardContext& ctx, TensorView x, F project) const {
  const size_t mark = ctx.arena.mark();
  const TensorView up = ctx.arena.take(x.dtype, x.shape[0], up_.num_outputs());
  up_.forward(ctx, up, x);
  ctx.ops.activate(ctx.launch, up, up, activation_);
  project(up);
  ctx.arena.release(mark);
}

}  // namespace quire
