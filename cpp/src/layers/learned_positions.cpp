#include "layers/learned_positions.h"

#include "util/check.h"

namespace quire {

LearnedPositions::LearnedPositions(BuildContext& build, const std::string& name, int32_t num_positions,
                                   int32_t hidden_size, int32_t first)
    : table_(DenseWeight::for_lookups(build, first + num_positions, hidden_size)), first_(first) {
  if (build.max_model_len > num_positions) {
    throw InvalidArgument(str("max_model_len ", build.max_model_len, " is more than the ", num_positions,
                              " positions that the model has learned"));
  }
  table_.load_rows(build, 0, build.checkpoint.take(name + ".weight", {first + num_positions, hidden_size}));
}

void LearnedPositions::add_to(const ForwardContext& ctx, TensorView x, TensorView positions) const {
  const size_t mark = ctx.arena.mark();
  const TensorView vectors = ctx.arena.take(x.dtype, x.shape[0], x.shape[1]);
  // Rows are looked up from a first id on, which is below the first position.
  ctx.ops.embedding(ctx.launch, vectors, positions, table_.view(), -first_);
  ctx.ops.add(ctx.launch, x, vectors);
  ctx.arena.release(mark);
}

}  // namespace quire
