// The packed layout of a linear's weight (isa/kernels.h draws it).
#include <algorithm>
#include <cstring>

#include "convert.h"
#include "ops.h"
#include "parallel.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace quire::cpu {
namespace {

int64_t padded(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Writes elements [begin, begin + count) of a row as the packed weight has them.
template <typename To>
void convert_row(void* out, const std::byte* row, DType dtype, int64_t begin, int64_t count) {
  const auto each = [&](auto from, auto one) {
    const std::byte* values = row + begin * static_cast<int64_t>(sizeof from);
    auto* to = static_cast<std::byte*>(out);
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(&from, values + i * static_cast<int64_t>(sizeof from), sizeof from);
      const To value = one(from);
      std::memcpy(to + i * static_cast<int64_t>(sizeof value), &value, sizeof value);
    }
  };
  const auto rounded = [](float value) -> To {
    if constexpr (sizeof(To) == 2) {
      return float_to_bf16(value);
    } else {
      return value;
    }
  };
  if (dtype == DType::kFloat16)
    return each(uint16_t{}, [&](uint16_t bits) { return rounded(fp16_to_float(bits)); });
  if (dtype == DType::kFloat32) return each(float{}, rounded);
  if constexpr (sizeof(To) == 2) {
    std::memcpy(out, row + begin * 2, static_cast<size_t>(count) * 2);
  } else {
    each(uint16_t{}, [](uint16_t bits) { return bf16_to_float(bits); });
  }
}

// A line of a panel holds one word of each of its 32 rows: a float, or two bf16.
constexpr int64_t kWordsAtOnce = 4;
constexpr int64_t kStretchWords = 128;
// Not a multiple of a page's part, or the same words of all rows would compete for the same few cache lines.
constexpr int64_t kBlockStride = kStretchWords + 2 * kWordsAtOnce;
using Block = uint32_t[kPanelColumns][kBlockStride];

// lines[i][r] = block[r][first + i], for four words of four rows.
void transpose(const Block& block, int64_t r, int64_t first, uint32_t* lines) {
#if defined(__x86_64__)
  const auto row = [&](int64_t i) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(&block[r + i][first]));
  };
  const auto put = [&](int64_t i, __m128i words) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(lines + i * kPanelColumns + r), words);
  };
  const __m128i a = _mm_unpacklo_epi32(row(0), row(1)), b = _mm_unpacklo_epi32(row(2), row(3));
  const __m128i c = _mm_unpackhi_epi32(row(0), row(1)), d = _mm_unpackhi_epi32(row(2), row(3));
  put(0, _mm_unpacklo_epi64(a, b));
  put(1, _mm_unpackhi_epi64(a, b));
  put(2, _mm_unpacklo_epi64(c, d));
  put(3, _mm_unpackhi_epi64(c, d));
#else
  for (int64_t i = 0; i < kWordsAtOnce; ++i) {
    for (int64_t j = 0; j < 4; ++j) lines[i * kPanelColumns + r + j] = block[r + j][first + i];
  }
#endif
}

// Rows of one panel. A stretch of each row is read in one go, which suits the memory better than 32 rows by
// turns, into a block that stays in the first-level cache; from there it is written line by line, each line
// once.
template <typename To>
void pack_panel(const LinearWeight& weight, int64_t first_row, int64_t num_rows, const TensorView& rows,
                int64_t row_begin) {
  constexpr int64_t kStep = sizeof(uint32_t) / sizeof(To);
  const int64_t depth = kStep == 2 ? padded(weight.k, kDepthAlign) : weight.k;
  const int64_t panel = first_row / kPanelColumns, column = first_row % kPanelColumns;
  auto* out = reinterpret_cast<uint32_t*>(static_cast<To*>(weight.data) + panel * kPanelColumns * depth);
  alignas(64) Block block;
  for (int64_t begin = 0; begin < weight.k; begin += kStretchWords * kStep) {
    const int64_t count = std::min(kStretchWords * kStep, weight.k - begin);
    const int64_t num_words = (count + kStep - 1) / kStep;
    for (int64_t r = 0; r < num_rows; ++r) {
      block[r][num_words - 1] = 0;  // the word that an odd count leaves half empty
      convert_row<To>(block[r], rows.at(first_row + r - row_begin), rows.dtype, begin, count);
    }
    uint32_t* lines = out + begin / kStep * kPanelColumns;
    const int64_t whole = num_rows == kPanelColumns ? num_words / kWordsAtOnce * kWordsAtOnce : 0;
    for (int64_t i = 0; i < whole; i += kWordsAtOnce) {
      for (int64_t r = 0; r < kPanelColumns; r += 4) transpose(block, r, i, lines + i * kPanelColumns);
    }
    for (int64_t i = whole; i < num_words; ++i) {
      for (int64_t r = 0; r < num_rows; ++r) lines[i * kPanelColumns + column + r] = block[r][i];
    }
  }
}

// Packs a panel of int8: a line holds one byte of each of the panel's rows.
void pack_int8_panel(const LinearWeight& weight, int64_t first_row, int64_t num_rows, const TensorView& rows,
                     int64_t row_begin) {
  const int64_t depth = weight.dtype == DType::kBFloat16 ? padded(weight.k, kDepthAlign) : weight.k;
  const int64_t panel = first_row / kPanelColumns, column = first_row % kPanelColumns;
  auto* out = static_cast<int8_t*>(weight.data) + panel * kPanelColumns * depth + column;
  constexpr int64_t kStretch = 64;
  int8_t block[kPanelColumns][kStretch];
  for (int64_t begin = 0; begin < weight.k; begin += kStretch) {
    const int64_t count = std::min(kStretch, weight.k - begin);
    for (int64_t r = 0; r < num_rows; ++r)
      std::memcpy(block[r], rows.at(first_row + r - row_begin) + begin, static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      int8_t* line = out + (begin + i) * kPanelColumns;
      for (int64_t r = 0; r < num_rows; ++r) line[r] = block[r][i];
    }
  }
}

}  // namespace

size_t linear_weight_bytes(int64_t n, int64_t k, DType dtype) {
  const int64_t depth = dtype == DType::kFloat32 ? k : padded(k, kDepthAlign);
  return static_cast<size_t>(padded(n, kPanelColumns) * depth) * dtype_bytes(dtype);
}

void linear_pack_rows(const LaunchContext& ctx, const LinearWeight& weight, int64_t row_begin,
                      TensorView rows) {
  const int64_t row_end = row_begin + rows.shape[0];
  const int64_t first_panel = row_begin / kPanelColumns;
  const int64_t panels = (row_end + kPanelColumns - 1) / kPanelColumns - first_panel;
  const auto pack = rows.dtype == DType::kInt8         ? pack_int8_panel
                    : weight.dtype == DType::kBFloat16 ? pack_panel<uint16_t>
                                                       : pack_panel<float>;
  WorkQueue queue(panels);  // pages are not all at hand equally soon
  const auto work = [&](int32_t, int32_t) {
    for (int64_t begin = 0, end = 0; queue.take(&begin, &end);) {
      for (int64_t p = first_panel + begin; p < first_panel + end; ++p) {
        const int64_t first = std::max(row_begin, p * kPanelColumns);
        const int64_t last = std::min(row_end, (p + 1) * kPanelColumns);
        pack(weight, first, last - first, rows, row_begin);
      }
    }
  };
  if (panels == 1) {
    work(0, 1);
  } else {
    on_all_threads(ctx, work);
  }
}

}  // namespace quire::cpu
