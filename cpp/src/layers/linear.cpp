#include "layers/linear.h"

#include <algorithm>

#include "device/buffer.h"
#include "util/check.h"

namespace quire {
namespace {

class UnquantizedLinearMethod final : public LinearMethod {
 public:
  UnquantizedLinearMethod(BuildContext& build, int64_t n, int64_t k, int64_t max_rows)
      : ops_(build.ops), buffer_(build.ops.linear_weight_bytes(n, k, build.dtype)) {
    weight_ = {buffer_.data(), n, k, build.dtype, /*packed=*/true};
    build.workspace_bytes =
        std::max(build.workspace_bytes, ops_.linear_workspace_bytes(max_rows, n, k, build.dtype));
  }
  void load_rows(const LaunchContext& launch, int64_t row_begin, TensorView rows) override {
    QUIRE_CHECK(rows.shape[1] == weight_.k && row_begin + rows.shape[0] <= weight_.n);
    ops_.linear_pack_rows(launch, weight_, row_begin, rows);
  }
  void apply(const ForwardContext& ctx, TensorView out, TensorView x, const float* bias) const override {
    QUIRE_CHECK(x.shape[1] == weight_.k && out.shape[1] == weight_.n && x.shape[0] == out.shape[0]);
    ctx.ops.linear(ctx.launch, out, x, weight_, bias);
  }
  const LinearWeight& weight() const override { return weight_; }

 private:
  const KernelTable& ops_;
  Buffer buffer_;
  LinearWeight weight_;
};

}  // namespace

std::unique_ptr<LinearMethod> make_linear_method(BuildContext& build, int64_t n, int64_t k,
                                                 int64_t max_rows) {
  return std::make_unique<UnquantizedLinearMethod>(build, n, k, max_rows);
}

Shard even_shard(int64_t total, int32_t rank, int32_t world_size) {
  const int64_t count = (total + world_size - 1) / world_size;
  return {rank * count, count};
}

Linear::Linear(BuildContext& build, const std::vector<LinearPart>& parts, int64_t total_k, int64_t k_begin,
               int64_t k, bool bias, bool reduce)
    : reduce_(reduce) {
  for (const LinearPart& part : parts) n_ += part.num_rows;
  method_ = make_linear_method(build, n_, k, build.max_num_tokens);
  int64_t row = 0;
  for (const LinearPart& part : parts) {
    const std::string weight = part.name + ".weight";
    const TensorView all = build.checkpoint.take(weight, {part.total_rows, total_k});
    method_->load_rows(build.launch, row, all.rows(part.row_begin, part.num_rows).columns(k_begin, k));
    build.checkpoint.done_with(weight);
    if (bias) {
      const auto values = build.checkpoint.take_floats(part.name + ".bias", part.total_rows);
      // A row-parallel bias is added once, by rank 0.
      if (!reduce || build.rank == 0) {
        const auto first = values.begin() + part.row_begin;
        bias_.insert(bias_.end(), first, first + part.num_rows);
      }
    }
    row += part.num_rows;
  }
}

Linear Linear::column_parallel(BuildContext& build, const std::vector<LinearPart>& parts, int64_t k,
                               bool bias) {
  return Linear(build, parts, k, 0, k, bias, /*reduce=*/false);
}

Linear Linear::row_parallel(BuildContext& build, const std::string& name, int64_t n, int64_t k, bool bias) {
  const Shard shard = even_shard(k, build.rank, build.world_size);
  return Linear(build, {{name, n, 0, n}}, k, shard.begin, shard.count, bias, /*reduce=*/true);
}

void Linear::forward(const ForwardContext& ctx, TensorView out, TensorView x) const {
  method_->apply(ctx, out, x, bias_.empty() ? nullptr : bias_.data());
  if (reduce_) ctx.communicator.all_reduce_sum(out);
}

}  // namespace quire
