#include "layers/vocab_parallel.h"

#include <algorithm>

namespace quire {
namespace {

// Rows of a shard that are in the vocabulary; the last ranks may have less.
int64_t rows_of(const Shard& shard, int64_t vocab_size) {
  return std::clamp<int64_t>(vocab_size - shard.begin, 0, shard.count);
}

// `compute` writes this rank's logits [R, shard.count]. `logits` has them, or those of all ranks.
template <typename Compute>
void gather_logits(const ForwardContext& ctx, TensorView logits, const Shard& shard, Compute compute) {
  if (logits.shape[1] == shard.count) {
    compute(logits);
    return;
  }
  const size_t mark = ctx.arena.mark();
  const TensorView mine = ctx.arena.take(DType::kFloat32, logits.shape[0], shard.count);
  compute(mine);
  ctx.communicator.all_gather_columns(ctx.launch, logits, mine);
  ctx.arena.release(mark);
}

}  // namespace

VocabParallelEmbedding::VocabParallelEmbedding(BuildContext& build, const std::string& name,
                                               int64_t vocab_size, int64_t hidden_size, bool for_logits)
    : shard_(even_shard(vocab_size, build.rank, build.world_size)),
      table_(for_logits ? DenseWeight::for_products(build, shard_.count, hidden_size, build.max_num_seqs)
                        : DenseWeight::for_lookups(build, shard_.count, hidden_size)) {
  const TensorView all = build.checkpoint.take(name + ".weight", {vocab_size, hidden_size});
  const int64_t num_rows = rows_of(shard_, vocab_size);
  if (num_rows > 0) table_.load_rows(build, 0, slice_rows(all, shard_.begin, num_rows));
  if (num_rows < shard_.count) table_.zero_rows(build, num_rows, shard_.count - num_rows);
}

void VocabParallelEmbedding::forward(const ForwardContext& ctx, TensorView out, TensorView input_ids) const {
  ctx.ops.embedding(ctx.launch, out, input_ids, table_.view(), static_cast<int32_t>(shard_.begin));
  ctx.communicator.all_reduce_sum(ctx.launch, out);
}

void VocabParallelEmbedding::compute_logits(const ForwardContext& ctx, TensorView logits,
                                            TensorView hidden) const {
  gather_logits(ctx, logits, shard_, [&](TensorView out) {
    ctx.ops.linear(ctx.launch, out, hidden, table_.view(), /*bias=*/nullptr);
  });
}

ParallelLMHead::ParallelLMHead(BuildContext& build, const std::string& name, int64_t vocab_size,
                               int64_t hidden_size)
    : shard_(even_shard(vocab_size, build.rank, build.world_size)) {
  const int64_t num_rows = rows_of(shard_, vocab_size);
  LinearShard shard;
  shard.parts = {{name, vocab_size, num_rows > 0 ? shard_.begin : 0, num_rows}};
  shard.num_zero_rows = shard_.count - num_rows;
  shard.total_k = shard.k = hidden_size;
  shard.max_rows = build.max_num_seqs;
  method_ = make_linear_method(build, shard);
}

void ParallelLMHead::compute_logits(const ForwardContext& ctx, TensorView logits, TensorView hidden) const {
  gather_logits(ctx, logits, shard_,
                [&](TensorView out) { method_->apply(ctx, out, hidden, /*bias=*/nullptr); });
}

}  // namespace quire
