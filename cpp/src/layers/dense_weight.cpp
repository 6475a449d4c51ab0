#include "layers/dense_weight.h"

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

int64_t row_bytes(const LinearWeight& weight) {
  return weight.k * static_cast<int64_t>(dtype_bytes(weight.dtype));
}

int64_t rows_at_once(const LinearWeight& weight, int64_t num_rows, int64_t bytes) {
  return std::max<int64_t>(1, std::min(num_rows, bytes / row_bytes(weight)));
}

Buffer make_room(const LinearWeight& weight, int64_t num_rows) {
  return Buffer(static_cast<size_t>(num_rows * row_bytes(weight)));
}

TensorView rows_in(const Buffer& values, const LinearWeight& weight, int64_t num_rows) {
  return TensorView(values.data(), weight.dtype, num_rows, weight.k);
}

}  // namespace

DenseWeight DenseWeight::for_products(BuildContext& build, int64_t n, int64_t k, int64_t max_rows) {
  if (build.ops.linear_pack_rows == nullptr) {
    DenseWeight out = for_lookups(build, n, k);
    build.workspace_bytes =
        std::max(build.workspace_bytes, build.ops.linear_workspace_bytes(max_rows, out.weight_));
    return out;
  }
  DenseWeight out;
  out.weight_ = {nullptr, n, k, build.dtype, /*packed=*/true};
  out.weight_.data = build.arena.allocate(build.ops.linear_weight_bytes(n, k, build.dtype));
  build.workspace_bytes =
      std::max(build.workspace_bytes, build.ops.linear_workspace_bytes(max_rows, out.weight_));
  return out;
}

DenseWeight DenseWeight::for_lookups(BuildContext& build, int64_t n, int64_t k) {
  DenseWeight out;
  out.weight_ = {nullptr, n, k, build.dtype, /*packed=*/false};
  out.weight_.data = build.arena.allocate(static_cast<size_t>(n * row_bytes(out.weight_)));
  return out;
}

void DenseWeight::load_rows(BuildContext& build, int64_t row_begin, TensorView rows) {
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

void DenseWeight::zero_rows(BuildContext& build, int64_t row_begin, int64_t num_rows) {
  if (weight_.packed) return;  // the host's memory begins as zeros
  load_zeros(build.loader, row(row_begin), num_rows, static_cast<size_t>(row_bytes(weight_)));
}

std::byte* DenseWeight::row(int64_t index) const {
  return static_cast<std::byte*>(weight_.data) + index * row_bytes(weight_);
}

void DenseWeight::pack_rows(BuildContext& build, int64_t row_begin, const TensorView& rows) {
  LaunchContext launch = build.launch;
  launch.host = nullptr;  // the threads are taken here
  const int64_t num_rows = rows.shape[0];
  const auto pack = [&](int64_t begin, int64_t end) {
    const int64_t last = std::min(num_rows, end * kPackRows);
    const int64_t at_once = rows_at_once(weight_, last - begin * kPackRows, kPackBytes);
    const Buffer values = make_room(weight_, at_once);
    for (int64_t row = begin * kPackRows; row < last; row += at_once) {
      const int64_t count = std::min(at_once, last - row);
      build.loader.read_rows(values.data(), weight_.dtype, rows.rows(row, count));
      build.ops.linear_pack_rows(launch, weight_, row_begin + row, rows_in(values, weight_, count));
    }
  };
  for_each_range(build.launch.host, (num_rows + kPackRows - 1) / kPackRows, pack);
}

void DenseWeight::pack_dummy_rows(BuildContext& build, int64_t row_begin, const TensorView& rows) {
  const int64_t at_once = rows_at_once(weight_, rows.shape[0], kDummyBytes);
  const Buffer values = make_room(weight_, at_once);
  for (int64_t row = 0; row < rows.shape[0]; row += at_once) {
    const TensorView part = slice_rows(rows, row, std::min(at_once, rows.shape[0] - row));
    build.loader.load(values.data(), weight_.dtype, part);
    build.ops.linear_pack_rows(build.launch, weight_, row_begin + row,
                               rows_in(values, weight_, part.shape[0]));
  }
}

}  // namespace quire
