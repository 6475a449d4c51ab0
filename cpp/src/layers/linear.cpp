#include "layers/linear.h"

#include <algorithm>

#include "device/buffer.h"
#include "device/for_each_range.h"
#include "util/check.h"

namespace quire {
namespace {

// A thread loads and packs this many bytes at a time: packed while they are in its caches.
constexpr int64_t kPackBytes = 1 << 20;
// Dummy values are packed this many bytes at a time.
constexpr int64_t kDummyBytes = 4 << 20;
// Threads have whole multiples of these rows, which are whole panels of packed weights.
constexpr int64_t kPackRows = 64;

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
    } else if (build.loader.measuring()) {
      return;
    } else if (rows.data) {
      pack_rows(build, row_begin, rows);
    } else {
      pack_dummy_rows(build, row_begin, rows);
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
  int64_t rows_at_once(int64_t num_rows, int64_t bytes) const {
    const int64_t row_bytes = weight_.k * static_cast<int64_t>(dtype_bytes(weight_.dtype));
    return std::max<int64_t>(1, std::min(num_rows, bytes / row_bytes));
  }
  // Room for so many rows.
  TensorView rows_in(const Buffer& values, int64_t num_rows) const {
    return TensorView(values.data(), weight_.dtype, num_rows, weight_.k);
  }
  Buffer make_room(int64_t num_rows) const {
    return Buffer(static_cast<size_t>(num_rows * weight_.k) * dtype_bytes(weight_.dtype));
  }
  void pack_rows(BuildContext& build, int64_t row_begin, const TensorView& rows) {
    LaunchContext launch = build.launch;
    launch.host = nullptr;  // the threads are taken here
    const int64_t num_rows = rows.shape[0];
    const auto pack = [&](int64_t begin, int64_t end) {
      const int64_t last = std::min(num_rows, end * kPackRows);
      const int64_t at_once = rows_at_once(last - begin * kPackRows, kPackBytes);
      const Buffer values = make_room(at_once);
      for (int64_t row = begin * kPackRows; row < last; row += at_once) {
        const int64_t count = std::min(at_once, last - row);
        build.loader.read_rows(values.data(), weight_.dtype, rows.rows(row, count));
        build.ops.linear_pack_rows(launch, weight_, row_begin + row, rows_in(values, count));
      }
    };
    for_each_range(build.launch.host, (num_rows + kPackRows - 1) / kPackRows, pack);
  }
  void pack_dummy_rows(BuildContext& build, int64_t row_begin, const TensorView& rows) {
    const int64_t at_once = rows_at_once(rows.shape[0], kDummyBytes);
    const Buffer values = make_room(at_once);
    for (int64_t row = 0; row < rows.shape[0]; row += at_once) {
      const TensorView part = slice_rows(rows, row, std::min(at_once, rows.shape[0] - row));
      build.loader.load(values.data(), weight_.dtype, part);
      build.ops.linear_pack_rows(build.launch, weight_, row_begin + row, rows_in(values, part.shape[0]));
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
  if (reduce_) ctx.communicator.all_reduce_sum(ctx.launch, out);
}

}  // namespace quire
