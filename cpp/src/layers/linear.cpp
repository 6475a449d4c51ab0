#include "layers/linear.h"

#include "layers/lora.h"
#include "util/check.h"

namespace quire {

Shard even_shard(int64_t total, int32_t rank, int32_t world_size) {
  const int64_t count = (total + world_size - 1) / world_size;
  return {rank * count, count};
}

Shard exact_shard(const BuildContext& build, int64_t total, const char* key) {
  if (total % build.world_size != 0) {
    throw InvalidArgument(
        str("tensor_parallel_size ", build.world_size, " does not divide ", key, " ", total));
  }
  return even_shard(total, build.rank, build.world_size);
}

Linear::Linear(BuildContext& build, const LinearShard& shard, bool bias, bool reduce)
    : n_(shard.n()), reduce_(reduce), method_(make_linear_method(build, shard)) {
  if (build.lora_targets != nullptr) lora_target_ = build.lora_targets->add(build, shard);
  if (!bias) return;
  // A row-parallel bias is added once, by rank 0.
  float* values = nullptr;
  if (!reduce || build.rank == 0) {
    values = reinterpret_cast<float*>(build.arena.allocate(static_cast<size_t>(n_) * sizeof(float)));
  }
  bias_ = values;
  for (const LinearPart& part : shard.parts) {
    const TensorView all = build.checkpoint.take(part.name + ".bias", {part.total_rows});
    if (values == nullptr) continue;
    build.loader.load(values, DType::kFloat32, slice_rows(all, part.row_begin, part.num_rows));
    values += part.num_rows;
  }
}

Linear Linear::column_parallel(BuildContext& build, const std::vector<LinearPart>& parts, int64_t k,
                               bool bias) {
  LinearShard shard;
  shard.parts = parts;
  shard.total_k = shard.k = k;
  shard.max_rows = build.max_num_tokens;
  return Linear(build, shard, bias, /*reduce=*/false);
}

Linear Linear::replicated(BuildContext& build, const std::string& name, int64_t n, int64_t k, bool bias) {
  return column_parallel(build, {{name, n, 0, n}}, k, bias);
}

Linear Linear::row_parallel(BuildContext& build, const std::string& name, int64_t n, int64_t k, bool bias,
                            WeightOrder order) {
  const Shard columns = even_shard(k, build.rank, build.world_size);
  LinearShard shard;
  shard.parts = {{name, n, 0, n, order}};
  shard.total_k = k;
  shard.k_begin = columns.begin;
  shard.k = columns.count;
  shard.max_rows = build.max_num_tokens;
  return Linear(build, shard, bias, /*reduce=*/true);
}

void Linear::forward(const ForwardContext& ctx, TensorView out, TensorView x) const {
  forward_part(ctx, out, x);
  if (reduce_) ctx.communicator.all_reduce_sum(ctx.launch, out);
}

void Linear::forward_part(const ForwardContext& ctx, TensorView out, TensorView x) const {
  if (has_lora(ctx)) {
    method_->apply_lora(ctx, ctx.lora->args_of(lora_target_, out, x), bias_);
  } else {
    method_->apply(ctx, out, x, bias_);
  }
}

bool Linear::forward_add(const ForwardContext& ctx, const Addition& to, TensorView x) const {
  // What ranks sum is one's own part of it, and adapters add to a product of their own.
  const bool is_all = !reduce_ || ctx.communicator.world_size() == 1;
  if (is_all && !has_lora(ctx) && method_->apply_add(ctx, to.sum, to.out, x, bias_)) return true;
  forward(ctx, to.out, x);
  return false;
}

void Linear::forward_gated(const ForwardContext& ctx, TensorView out, TensorView y, TensorView x,
                           Activation activation) const {
  QUIRE_CHECK(!reduce_);
  if (!has_lora(ctx)) return method_->apply_gated(ctx, out, y, x, bias_, activation);
  method_->apply_lora_gated(ctx, out, ctx.lora->args_of(lora_target_, y, x), bias_, activation);
}

bool Linear::has_lora(const ForwardContext& ctx) const { return ctx.lora != nullptr && lora_target_ >= 0; }

}  // namespace quire
