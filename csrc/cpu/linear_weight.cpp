// The packed layout of a linear's weight (isa/kernels.h draws it).
#include <cstring>

#include "convert.h"
#include "ops.h"
#include "parallel.h"

namespace quire::cpu {
namespace {

int64_t padded(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

template <typename To>
To element(const std::byte* row, DType dtype, int64_t i) {
  float value = 0;
  switch (dtype) {
    case DType::kBFloat16: {
      const uint16_t bits = reinterpret_cast<const uint16_t*>(row)[i];
      if constexpr (sizeof(To) == 2) return bits;
      value = bf16_to_float(bits);
      break;
    }
    case DType::kFloat16: value = fp16_to_float(reinterpret_cast<const uint16_t*>(row)[i]); break;
    default: value = reinterpret_cast<const float*>(row)[i]; break;
  }
  if constexpr (sizeof(To) == 2) {
    return float_to_bf16(value);
  } else {
    return value;
  }
}

// Rows of one panel, converted a stretch at a time into a block that stays in the first-level cache,
// then written out line by line: lines of the packed weight are touched once.
template <typename To>
void pack_panel(const LinearWeight& weight, int64_t first_row, int64_t num_rows, const TensorView& rows,
                int64_t row_begin) {
  constexpr int64_t kStep = sizeof(To) == 2 ? 2 : 1;
  constexpr int64_t kStretch = 64;
  const int64_t depth = kStep == 2 ? padded(weight.k, kDepthAlign) : weight.k;
  const int64_t panel = first_row / kPanelColumns, column = first_row % kPanelColumns;
  To* out = static_cast<To*>(weight.data) + panel * kPanelColumns * depth + column * kStep;
  alignas(64) To block[kPanelColumns][kStretch];
  for (int64_t begin = 0; begin < weight.k; begin += kStretch) {
    const int64_t count = std::min(kStretch, weight.k - begin);
    for (int64_t r = 0; r < num_rows; ++r) {
      const std::byte* source = rows.at(first_row + r - row_begin);
      for (int64_t i = 0; i < count; ++i) block[r][i] = element<To>(source, rows.dtype, begin + i);
      for (int64_t i = count; i < padded(count, kStep); ++i) block[r][i] = To{};
    }
    for (int64_t i = 0; i < count; i += kStep) {
      To* line = out + (begin + i) / kStep * kPanelColumns * kStep;
      for (int64_t r = 0; r < num_rows; ++r) std::memcpy(line + r * kStep, &block[r][i], kStep * sizeof(To));
    }
  }
}

}  // namespace

size_t linear_weight_bytes(int64_t n, int64_t k, DType dtype) {
  const int64_t depth = dtype == DType::kBFloat16 ? padded(k, kDepthAlign) : k;
  return static_cast<size_t>(padded(n, kPanelColumns) * depth) * dtype_bytes(dtype);
}

void linear_pack_rows(const LaunchContext& ctx, const LinearWeight& weight, int64_t row_begin,
                      TensorView rows) {
  const int64_t row_end = row_begin + rows.shape[0];
  const int64_t first_panel = row_begin / kPanelColumns;
  const int64_t panels = (row_end + kPanelColumns - 1) / kPanelColumns - first_panel;
  const auto pack = weight.dtype == DType::kBFloat16 ? pack_panel<uint16_t> : pack_panel<float>;
  parallel_ranges(ctx, panels, 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = first_panel + begin; p < first_panel + end; ++p) {
      const int64_t first = std::max(row_begin, p * kPanelColumns);
      const int64_t last = std::min(row_end, (p + 1) * kPanelColumns);
      pack(weight, first, last - first, rows, row_begin);
    }
  });
}

}  // namespace quire::cpu
