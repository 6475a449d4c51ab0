#include "layers/linear.h"

#include <algorithm>

#include "device/buffer.h"
#include "util/check.h"

namespace quire {
namespace {

// Rows are loaded and packed this many bytes for each thread at a time: packed while they are in its caches.
constexpr int64_t kPackBytesPerThread = 1 << 20;

class UnquantizedLinearMethod final : public LinearMethod {
 public:
  UnquantizedLinearMethod(BuildContext& build, int64_t n, int64_t k, int64_t max_rows) {
    const bool packed = build.ops.linear_pack_rows != nullptr;
    const size_t bytes = packed ? build.ops.linear_weight_bytes(n, k, build.dtype)
                                : static_cast<size_t>(n * k) * dtype_bytes(build.dtype);
    weight_ = {build.arena.allocate(bytes), n, k, build.dtype, packed};
    build.workspace_bytes =
        std::max(build.workspace_bytes, build.ops.linear_workspace_bytes(max_rows, n, k, build.dtype));
  }
  void load_rows(BuildContext& build, int64_t row_begin, TensorView rows) override {
    QUIRE_CHECK(rows.shape[1] == weight_.k && row_begin + rows.shape[0] <= weight_.n);
    if (!weight_.packed) {
      build.loader.load(row(row_begin), weight_.dtype, rows);
    } else if (!build.loader.measuring()) {
      pack_rows(build, row_begin, rows);
    }
  }
  void zero_rows(BuildContext& build, int64_t row_begin, int64_t num_rows) override {
    if (weight_.packed) return;  // the host's memory begins as zeros
    load_zeros(build.loader, row(row_begin), num_rows,
               static_cast<size_t>(weight_.k) * dtype_bytes(weight_.dtype));
  }
  void apply(const ForwardContext& ctx, TensorView out, TensorView x, const float* bias) const override {
    QUIRE_CHECK(x.shape[1] == weight_.k && out.shape[1] == weight_.n && x.shape[0] == out.shape[0]);
    ctx.ops.linear(ctx.launch, out, x, weight_, bias);
  }
  const LinearWeight& weight() const override { return weight_; }

 private:
  std::byte* row(int64_t index) const {
    return static_cast<std::byte*>(weight_.data) +
           static_cast<size_t>(index * weight_.k) * dtype_bytes(weight_.dtype);
  }
  void pack_rows(BuildContext& build, int64_t row_begin, const TensorView& rows) {
    const int64_t row_bytes = weight_.k * static_cast<int64_t>(dtype_bytes(weight_.dtype));
    const int64_t num_threads = build.launch.host ? build.launch.host->num_threads : 1;
    const int64_t fitting = num_threads * kPackBytesPerThread / row_bytes;
    const int64_t at_once = std::max<int64_t>(1, std::min(rows.shape[0], fitting));
    const Buffer values(static_cast<size_t>(at_once * row_bytes));
    for (int64_t done = 0; done < rows.shape[0]; done += at_once) {
      const TensorView part = slice_rows(rows, done, std::min(at_once, rows.shape[0] - done));
      const TensorView loaded(values.data(), weight_.dtype, part.shape[0], weight_.k);
      build.loader.load(values.data(), weight_.dtype, part);
      build.ops.linear_pack_rows(build.launch, weight_, row_begin + done, loaded);
    }
  }

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
  float* bias_values = nullptr;
  // A row-parallel bias is added once, by rank 0.
  if (bias && (!reduce || build.rank == 0)) {
    bias_values = reinterpret_cast<float*>(build.arena.allocate(static_cast<size_t>(n_) * sizeof(float)));
  }
  bias_ = bias_values;
  int64_t row = 0;
  for (const LinearPart& part : parts) {
    const TensorView all = build.checkpoint.take(part.name + ".weight", {part.total_rows, total_k});
    method_->load_rows(build, row, slice_columns(slice_rows(all, part.row_begin, part.num_rows), k_begin, k));
    if (bias) {
      const TensorView values = build.checkpoint.take(part.name + ".bias", {part.total_rows});
      if (bias_values) {
        build.loader.load(bias_values + row, DType::kFloat32,
                          slice_rows(values, part.row_begin, part.num_rows));
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
  method_->apply(ctx, out, x, bias_);
  if (reduce_) ctx.communicator.all_reduce_sum(out);
}

}  // namespace quire
