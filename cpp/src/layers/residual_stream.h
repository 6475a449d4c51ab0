#pragma once

#include "layers/norm.h"
#include "quire/export.h"

namespace quire QUIRE_MODEL_API {

// What the layers of a forward pass read and add to, [T, hidden_size]. An addition waits for the next norm,
// which does both in one pass over the memory.
class ResidualStream {
 public:
  // `value` [T, hidden_size] is what the first layer reads; it becomes the sum.
  ResidualStream(const ForwardContext& ctx, TensorView value)
      : value_(value), addend_(ctx.arena.take(value.dtype, value.shape[0], value.shape[1])) {}

  // Where the next addition is to be written, before `add`; not while one waits.
  TensorView addend() const { return addend_; }
  void add() { waits_ = true; }

  // norm(the sum), in a new tensor of the arena.
  TensorView normalized(const ForwardContext& ctx, const Norm& norm) {
    const TensorView out = ctx.arena.take(value_.dtype, value_.shape[0], value_.shape[1]);
    if (waits_) {
      norm.forward_add(ctx, out, value_, addend_);
    } else {
      norm.forward(ctx, out, value_);
    }
    waits_ = false;
    return out;
  }

  // The sum itself, for parts that read it without a norm, or after the one that `normalized` it.
  TensorView sum(const ForwardContext& ctx) {
    if (waits_) ctx.ops.add(ctx.launch, value_, addend_);
    waits_ = false;
    return value_;
  }

 private:
  TensorView value_, addend_;
  bool waits_ = false;
};

}  // namespace quire
