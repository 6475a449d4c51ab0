#include "layers/vocab_parallel.h"

#include <algorithm>

namespace quire {

VocabParallelEmbedding::VocabParallelEmbedding(BuildContext& build, const std::string& name,
                                               int64_t vocab_size, int64_t hidden_size, bool for_logits)
    : shard_(even_shard(vocab_size, build.rank, build.world_size)), world_size_(build.world_size) {
  const TensorView all = build.checkpoint.take(name + ".weight", {vocab_size, hidden_size});
  // Rows past the vocabulary stay zero.
  const int64_t num_rows = std::clamp<int64_t>(vocab_size - shard_.begin, 0, shard_.count);
  const int64_t num_padding = shard_.count - num_rows;
  const TensorView mine = slice_rows(all, num_rows > 0 ? shard_.begin : 0, num_rows);
  if (for_logits) {
    packed_ = make_linear_method(build, shard_.count, hidden_size, build.max_num_seqs);
    if (num_rows > 0) packed_->load_rows(build, 0, mine);
    if (num_padding > 0) packed_->zero_rows(build, num_rows, num_padding);
  } else {
    const size_t row_bytes = static_cast<size_t>(hidden_size) * dtype_bytes(build.dtype);
    std::byte* rows = build.arena.allocate(static_cast<size_t>(shard_.count) * row_bytes);
    plain_weight_ = {rows, shard_.count, hidden_size, build.dtype, /*packed=*/false};
    if (num_rows > 0) build.loader.load(rows, build.dtype, mine);
    if (num_padding > 0) {
      load_zeros(build.loader, rows + static_cast<size_t>(num_rows) * row_bytes, num_padding, row_bytes);
    }
  }
}

void VocabParallelEmbedding::forward(const ForwardContext& ctx, TensorView out, TensorView input_ids) const {
  ctx.ops.embedding(ctx.launch, out, input_ids, packed_ ? packed_->weight() : plain_weight_,
                    static_cast<int32_t>(shard_.begin));
  ctx.communicator.all_reduce_sum(ctx.launch, out);
}

void VocabParallelEmbedding::compute_logits(const ForwardContext& ctx, TensorView logits,
                                            TensorView hidden) const {
  if (world_size_ == 1) {
    packed_->apply(ctx, logits, hidden, nullptr);
    return;
  }
  const size_t mark = ctx.arena.mark();
  const TensorView mine = ctx.arena.take(DType::kFloat32, hidden.shape[0], shard_.count);
  packed_->apply(ctx, mine, hidden, nullptr);
  ctx.communicator.all_gather_columns(ctx.launch, logits, mine);
  ctx.arena.release(mark);
}

size_t VocabParallelEmbedding::logits_bytes(int64_t rows) const {
  if (world_size_ == 1) return 0;
  return ActivationArena::bytes(DType::kFloat32, rows * shard_.count);
}

}  // namespace quire
