#pragma once

#include "layers/linear.h"
#include "layers/norm.h"
#include "quire/export.h"
#include "util/check.h"

namespace quire QUIRE_MODEL_API {

// What the layers of a forward pass read and add to, [T, hidden_size]. An addition waits for the next norm,
// and so does the norm of what is added, where there is one: one pass over the memory does it all.
class ResidualStream {
 public:
  // `value` [T, hidden_size] is what the first layer reads; it becomes the sum.
  ResidualStream(const ForwardContext& ctx, TensorView value)
      : value_(value), addend_(ctx.arena.take(value.dtype, value.shape[0], value.shape[1])) {}

  // Where the next addition is to be written, before `add` or `add_normalized`; not while one waits.
  TensorView addend() const { return addend_; }
  void add() { waits_ = true; }
  // The same for parts that may add to the sum themselves, which is what they return and `add` is told.
  Addition addition() const {
    QUIRE_CHECK(!waits_, "two additions to a sum");
    return {addend_, value_};
  }
  void add(bool is_added) { waits_ = !is_added; }
  // Adds norm(the addend). The norm is kept by reference until the next call of `normalized` or `sum`.
  void add_normalized(const Norm& norm) {
    waits_ = true;
    addend_norm_ = &norm;
  }

  // norm(the sum), in a new tensor of the arena.
  TensorView normalized(const ForwardContext& ctx, const Norm& norm) {
    const TensorView out = ctx.arena.take(value_.dtype, value_.shape[0], value_.shape[1]);
    if (addend_norm_ != nullptr) {
      norm.forward_norm_add(ctx, out, value_, addend_, *addend_norm_);
    } else if (waits_) {
      norm.forward_add(ctx, out, value_, addend_);
    } else {
      norm.forward(ctx, out, value_);
    }
    settle();
    return out;
  }

  // Where an attention's addition is to be written, whose layer has read the stream before: of the rows that
  // are wanted where these are not all. From there on the stream has no others.
  TensorView narrowed_addend(const ForwardContext& ctx) {
    if (!ctx.wanted_rows) return addend_;
    QUIRE_CHECK(!waits_, "rows are left out while an addition waits");
    // In the addend's memory behind what is added to them.
    const int64_t T = value_.shape[0], R = ctx.wanted_rows->shape[0];
    QUIRE_CHECK(2 * R <= T, R, " of ", T, " rows are wanted");
    const TensorView value = addend_.rows(T - R, R);
    if (R > 0) ctx.ops.gather_rows(ctx.launch, value, value_, *ctx.wanted_rows);
    value_ = value;
    addend_ = addend_.rows(0, R);
    return addend_;
  }
  Addition narrowed_addition(const ForwardContext& ctx) {
    narrowed_addend(ctx);
    return addition();
  }
  // Whether none is wanted: of a chunk of a prompt that is not its last, for example.
  bool is_empty() const { return value_.shape[0] == 0; }

  // The sum itself, for parts that read it without a norm, or after the one that `normalized` it.
  TensorView sum(const ForwardContext& ctx) {
    if (addend_norm_ != nullptr) addend_norm_->forward(ctx, addend_, addend_);
    if (waits_) ctx.ops.add(ctx.launch, value_, addend_);
    settle();
    return value_;
  }

 private:
  void settle() {
    waits_ = false;
    addend_norm_ = nullptr;
  }

  TensorView value_, addend_;
  bool waits_ = false;
  const Norm* addend_norm_ = nullptr;  // of what waits, null where it is added as it is
};

}  // namespace quire
