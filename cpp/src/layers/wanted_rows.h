#pragma once

#include "layers/context.h"
#include "quire/export.h"

namespace quire QUIRE_MODEL_API {

// The rows of x [T, n] that ctx.wanted_rows names, in a new tensor of the arena; or x, where all are wanted.
inline TensorView wanted_rows_of(const ForwardContext& ctx, TensorView x) {
  if (!ctx.wanted_rows) return x;
  const TensorView out = ctx.arena.take(x.dtype, ctx.wanted_rows->shape[0], x.shape[1]);
  ctx.ops.gather_rows(ctx.launch, out, x, *ctx.wanted_rows);
  return out;
}

}  // namespace quire
