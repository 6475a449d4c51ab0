#include "layers/dense_weight.h"

#include <algorithm>

#include "device/buffer.h"
#include "layers/pack_rows.h"
#include "util/check.h"

namespace quire {
namespace {

// Dummy values are packed this many bytes at a time.
constexpr int64_t kDummyBytes = 4 << 20;
int64_t row_bytes(const LinearWeight& weight) {
  return weight.k * static_cast<int64_t>(dtype_bytes(weight.dtype));
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

std::vector<DenseWeight> DenseWeight::stack(BuildContext& build, int64_t count, int64_t n, int64_t k) {
  const bool packs = build.ops.linear_pack_rows != nullptr;
  const size_t each = DeviceArena::rounded(packs ? build.ops.linear_weight_bytes(n, k, build.dtype)
                                                 : static_cast<size_t>(n * k) * dtype_bytes(build.dtype));
  std::byte* data = build.arena.allocate(static_cast<size_t>(count) * each);
  std::vector<DenseWeight> out(static_cast<size_t>(count));
  for (DenseWeight& weight : out) {
    weight.weight_ = {data, n, k, build.dtype, packs};
    data += each;
  }
  return out;
}

void DenseWeight::load_rows(BuildContext& build, int64_t row_begin, TensorView rows) {
  QUIRE_CHECK(rows.shape[1] == weight_.k && row_begin + rows.shape[0] <= weight_.n);
  if (build.loader.keeps(rows)) return;
  if (!weight_.packed || build.loader.measuring()) {
    build.loader.load(row(row_begin), weight_.dtype, rows);
  } else if (rows.data) {
    pack_rows(build, weight_, row_begin, rows.shape[0], weight_.dtype,
              [&](std::byte* out, int64_t row, int64_t count) {
                build.loader.read_rows(out, weight_.dtype, rows.rows(row, count));
              });
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

void DenseWeight::pack_dummy_rows(BuildContext& build, int64_t row_begin, const TensorView& rows) {
  const int64_t num_rows = rows.shape[0];
  const int64_t at_once = std::clamp<int64_t>(kDummyBytes / row_bytes(weight_), 1, num_rows);
  const Buffer values(static_cast<size_t>(at_once * row_bytes(weight_)));
  for (int64_t row = 0; row < num_rows; row += at_once) {
    const TensorView part = slice_rows(rows, row, std::min(at_once, num_rows - row));
    build.loader.load(values.data(), weight_.dtype, part);
    build.ops.linear_pack_rows(build.launch, weight_, row_begin + row,
                               TensorView(values.data(), weight_.dtype, part.shape[0], weight_.k));
  }
}

}  // namespace quire
