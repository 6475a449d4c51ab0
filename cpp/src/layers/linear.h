// Matrix products with weights from a checkpoint, each rank holding its share.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "layers/context.h"

namespace quire {

// How a linear's weight is stored and applied: plain today; quantized formats are other implementations.
class LinearMethod {
 public:
  virtual ~LinearMethod() = default;
  // Rows of the checkpoint's weight, columns already cut to this rank's. Disjoint, in any order.
  virtual void load_rows(BuildContext& build, int64_t row_begin, TensorView rows) = 0;
  // Rows that no checkpoint has: they multiply to zero.
  virtual void zero_rows(BuildContext& build, int64_t row_begin, int64_t num_rows) = 0;
  // out[t, :] = x[t, :] * weight^T (+ bias)
  virtual void apply(const ForwardContext& ctx, TensorView out, TensorView x, const float* bias) const = 0;
  // The weight for ops that read it otherwise (a tied embedding).
  virtual const LinearWeight& weight() const = 0;
};

// A weight [n, k] of this rank in the model's dtype, laid out as the backend likes it. Grows
// build.workspace_bytes by what `max_rows` rows need.
std::unique_ptr<LinearMethod> make_linear_method(BuildContext& build, int64_t n, int64_t k, int64_t max_rows);

// A run of rows of one tensor "<name>.weight" [total_rows, total_k] in the checkpoint.
struct LinearPart {
  std::string name;
  int64_t total_rows = 0;
  int64_t row_begin = 0;
  int64_t num_rows = 0;
};

// One or more tensors' rows, stacked into one product.
class Linear {
 public:
  Linear() = default;

  // Outputs are split over the ranks: the caller says which rows of each part are this rank's. Needs no
  // communication. With `bias`, "<name>.bias" of every part.
  static Linear column_parallel(BuildContext& build, const std::vector<LinearPart>& parts, int64_t k,
                                bool bias);

  // Inputs are split evenly over the ranks, whose outputs are summed. The bias is added by rank 0.
  static Linear row_parallel(BuildContext& build, const std::string& name, int64_t n, int64_t k, bool bias);

  //   x [T, k of this rank], out [T, n of this rank]. Row-parallel linears sum over the ranks before
  //   returning.
  void forward(const ForwardContext& ctx, TensorView out, TensorView x) const;

  int64_t num_outputs() const { return n_; }

 private:
  Linear(BuildContext& build, const std::vector<LinearPart>& parts, int64_t total_k, int64_t k_begin,
         int64_t k, bool bias, bool reduce);

  int64_t n_ = 0;
  bool reduce_ = false;
  const float* bias_ = nullptr;  // [n], in the backend's memory; null: none
  std::unique_ptr<LinearMethod> method_;
};

// Rows [begin, begin + count) of `total` that are this rank's; every rank has as many, so the last may reach
// past the end.
struct Shard {
  int64_t begin = 0;
  int64_t count = 0;
};
Shard even_shard(int64_t total, int32_t rank, int32_t world_size);

}  // namespace quire
