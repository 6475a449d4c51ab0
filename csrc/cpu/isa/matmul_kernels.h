// Matmuls on vectors: linear layers and the two products of attention. Include after one simd_*.h.
//
// One micro-kernel serves all: C[rows, columns] = A[rows, depth] * B[depth, columns], where B is stored
// by rows (fp32) or by pairs of rows (bf16) and may come in several pieces along the depth. An element
// of C is one chain of multiply-adds in depth order, whatever the number of rows.
#pragma once

#include "isa/kernels.h"

namespace quire::cpu {
namespace {

// How a dtype of the right operand is read. kStep: depth consumed at once. kColumn: elements from one column
// to the next.
template <typename T>
struct Operand;

template <>
struct Operand<float> {
  using Left = float;
  static constexpr int kStep = 1, kColumn = 1;
  using Right = F32;
  static Right right(const float* p) { return load(p); }
  static F32 broadcast(const float* p) { return set1(*p); }
  static F32 accumulate(F32 acc, F32 a, F32 b) { return fma(a, b, acc); }
};

template <>
struct Operand<bf16> {
  using Left = Staged;
  static constexpr int kStep = 2, kColumn = 2;
  using Right = Pairs;
  static Right right(const bf16* p) { return load_pairs(p); }
  static StagedPair broadcast(const Staged* p) { return broadcast_pair(p); }
  static F32 accumulate(F32 acc, const StagedPair& a, const Pairs& b) { return dot_pairs(acc, a, b); }
};

// Rows of 32 int8, which become what an operand of T would be: exactly, for T = bf16 too.
template <typename T>
struct Int8For {
  int8_t value;
};

template <>
struct Operand<Int8For<float>> : Operand<float> {
  static Right right(const Int8For<float>* p) { return load(&p->value); }
};

template <>
struct Operand<Int8For<bf16>> : Operand<bf16> {
  static constexpr int kColumn = 1;
  static Right right(const Int8For<bf16>* p) {
    return make_pairs(load(&p->value), load(&p[kPanelColumns].value));
  }
};

template <typename T>
using Left = typename Operand<T>::Left;

// B as pieces of `depth` rows each; `stride` elements lie between its (pairs of) rows, `panel_stride` between
// panels that are multiplied together. `ahead`: how many bytes ahead to prefetch, 0 when B is in a cache.
struct Pieces {
  const void* const* pieces;
  int64_t num_pieces;
  int64_t depth;
  int64_t stride;
  int64_t offset;  // elements from a piece's start to the first column
  int64_t ahead;
  int64_t panel_stride = 0;
};

// The columns of `VectorsOfPanel` vectors of each of `Panels` panels.
template <typename T, int Rows, int VectorsOfPanel, int Panels = 1>
void multiply(const Left<T>* a, int64_t a_stride, const Pieces& b, float* c, int64_t c_stride) {
  using Op = Operand<T>;
  constexpr int Vectors = VectorsOfPanel * Panels;
  F32 acc[Rows][Vectors];
  for (auto& row : acc)
    for (F32& v : row) v = zero();
  for (int64_t p = 0; p < b.num_pieces; ++p) {
    const T* line = static_cast<const T*>(b.pieces[p]) + b.offset;
    const Left<T>* left = a + p * b.depth;
    int64_t ahead = b.ahead;
    [[maybe_unused]] const int64_t last = b.depth - ahead / (b.stride * int64_t{sizeof(T)}) * Op::kStep;
    for (int64_t k = 0; k < b.depth; k += Op::kStep, line += b.stride, left += Op::kStep) {
      if constexpr (Panels > 1) {  // what follows a panel's end is the start of the panel after the next
        if (k == last) ahead += (Panels - 1) * b.panel_stride * int64_t{sizeof(T)};
      }
      typename Op::Right right[Vectors];
      for (int j = 0; j < Vectors; ++j) {
        const T* vector =
            line + j / VectorsOfPanel * b.panel_stride + j % VectorsOfPanel * kLanes * Op::kColumn;
        if (ahead != 0) prefetch(reinterpret_cast<const char*>(vector) + ahead);
        right[j] = Op::right(vector);
      }
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) {
        const auto x = Op::broadcast(left + r * a_stride);
#pragma GCC unroll 4
        for (int j = 0; j < Vectors; ++j) acc[r][j] = Op::accumulate(acc[r][j], x, right[j]);
      }
    }
  }
  for (int r = 0; r < Rows; ++r)
    for (int j = 0; j < Vectors; ++j) store(c + r * c_stride + j * kLanes, acc[r][j]);
}

template <typename T>
using Multiply = void (*)(const Left<T>*, int64_t, const Pieces&, float*, int64_t);

template <typename T, int Vectors, int Rows = kMaxRows>
Multiply<T> multiply_rows(int64_t rows) {
  if constexpr (Rows == 1) {
    return multiply<T, 1, Vectors>;
  } else {
    return rows >= Rows ? multiply<T, Rows, Vectors> : multiply_rows<T, Vectors, Rows - 1>(rows);
  }
}

template <typename T, int Vectors>
void multiply_columns(const Left<T>* a, int64_t a_stride, int64_t rows, const Pieces& b, float* c,
                      int64_t c_stride) {
  for (int64_t r = 0; r < rows; r += kMaxRows)
    multiply_rows<T, Vectors>(rows - r)(a + r * a_stride, a_stride, b, c + r * c_stride, c_stride);
}

// All rows; `columns` is a multiple of 16. A single row keeps more columns at a time, or it would wait for
// the latency of its few sums.
template <typename T>
void multiply_block(const Left<T>* a, int64_t a_stride, int64_t rows, Pieces b, int64_t columns, float* c,
                    int64_t c_stride) {
  constexpr int kThin = kThinVectors * kLanes, kWide = kColumnVectors * kLanes;
  constexpr int kNarrow = kWide < 16 ? kWide : 16;
  for (int64_t done = 0; done < columns;) {
    const int64_t rest = columns - done;
    int64_t width = kNarrow;
    if (rows == 1 && rest >= kThin) {
      width = kThin;
      multiply<T, 1, kThinVectors>(a, a_stride, b, c + done, c_stride);
    } else if (rest >= kWide) {
      width = kWide;
      multiply_columns<T, kColumnVectors>(a, a_stride, rows, b, c + done, c_stride);
    } else {
      multiply_columns<T, kNarrow / kLanes>(a, a_stride, rows, b, c + done, c_stride);
    }
    b.offset += width * Operand<T>::kColumn;
    done += width;
  }
}

// ---- linear ---------------------------------------------------------------------------------------

// K as the packed weight has it.
template <typename T>
constexpr int64_t weight_depth(int64_t k) {
  return Operand<T>::kStep == 2 ? (k + kDepthAlign - 1) / kDepthAlign * kDepthAlign : k;
}

// Rows of staged x are 64 bytes further apart than their depth: hidden sizes are powers of two often
// enough, and all rows of a block would compete for the same lines of the first-level cache.
template <typename T>
constexpr int64_t staged_stride(int64_t k) {
  constexpr int64_t kLine = 64 / sizeof(Left<T>);
  return (weight_depth<T>(k) + kLine - 1) / kLine * kLine + kLine;
}

template <typename T>
size_t staged_bytes(int64_t m, int64_t k) {
  return static_cast<size_t>(m * staged_stride<T>(k)) * sizeof(Left<T>);
}

// dst[0:n] = src[0:n], zeros up to depth.
template <typename T>
void stage_row(Left<T>* dst, const T* src, int64_t n, int64_t depth) {
  if constexpr (sizeof(Left<T>) == sizeof(T)) {
    memcpy(dst, src, static_cast<size_t>(n) * sizeof(T));
  } else {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(dst + i, load(src + i));
    if (i < n) store_part(dst + i, load_part(src + i, static_cast<int>(n - i)), static_cast<int>(n - i));
  }
  for (int64_t i = n; i < depth; ++i) dst[i] = 0;
}

// Where the r-th of the rows to multiply begins.
template <typename T>
const T* input_row(const LinearArgs& args, int64_t r) {
  return static_cast<const T*>(args.x) + (args.x_rows != nullptr ? args.x_rows[r] : r) * args.x_stride;
}

template <typename T>
void stage_rows(const LinearArgs& args, int64_t row_begin, int64_t row_end) {
  const int64_t stride = staged_stride<T>(args.k);
  for (int64_t r = row_begin; r < row_end; ++r)
    stage_row<T>(static_cast<Left<T>*>(args.staged) + r * stride, input_row<T>(args, r), args.k,
                 weight_depth<T>(args.k));
}

// What becomes of a row's sums on their way out. Each part may be null.
struct Finish {
  const float *scales, *zero_points, *bias;
  float row_sum;

  F32 operator()(F32 sum, int j) const {
    if (zero_points != nullptr) sum = fnma(load(zero_points + j), set1(row_sum), sum);
    if (scales != nullptr) sum = mul(sum, load(scales + j));
    return bias != nullptr ? add(sum, load(bias + j)) : sum;
  }
  F32 part(F32 sum, int j, int rest) const {
    if (zero_points != nullptr) sum = fnma(load_part(zero_points + j, rest), set1(row_sum), sum);
    if (scales != nullptr) sum = mul(sum, load_part(scales + j, rest));
    return bias != nullptr ? add(sum, load_part(bias + j, rest)) : sum;
  }
};

// One row of a panel, of which `columns` exist.
template <bool kAdds, typename Out>
void store_row(Out* out, const float* row, const Finish& finish, int columns) {
  int j = 0;
  for (; j + kLanes <= columns; j += kLanes) {
    const F32 value = finish(load(row + j), j);
    store(out + j, kAdds ? add(load(out + j), value) : value);
  }
  if (j < columns) {
    const int rest = columns - j;
    const F32 value = finish.part(load_part(row + j, rest), j, rest);
    store_part(out + j, kAdds ? add(load_part(out + j, rest), value) : value, rest);
  }
}

// The row of `out` that the r-th of the rows to multiply belongs to.
inline int64_t output_row(const LinearArgs& args, int64_t r) {
  return args.add_to != nullptr ? args.add_to[r] : r;
}

template <typename Out>
void store_row(const LinearArgs& args, int64_t r, int64_t column, const float* row, const Finish& finish,
               int columns) {
  Out* out = static_cast<Out*>(args.out) + output_row(args, r) * args.out_stride + column;
  if (args.add_to != nullptr) {
    store_row<true>(out, row, finish, columns);
  } else {
    store_row<false>(out, row, finish, columns);
  }
}

inline void store_panel(const LinearArgs& args, int64_t first_row, int64_t rows, int64_t panel,
                        const float* block, int64_t block_stride) {
  const int64_t column = panel * kPanelColumns;
  const int columns = static_cast<int>(args.n - column < kPanelColumns ? args.n - column : kPanelColumns);
  const auto from_column = [column](const float* values) {
    return values != nullptr ? values + column : nullptr;
  };
  Finish finish = {from_column(args.scales), from_column(args.zero_points), from_column(args.bias), 0.0F};
  for (int64_t r = 0; r < rows; ++r) {
    if (finish.zero_points != nullptr) finish.row_sum = args.row_sums[first_row + r];
    const float* row = block + r * block_stride;
    if (args.out_is_bf16) {
      store_row<bf16>(args, first_row + r, column, row, finish, columns);
    } else {
      store_row<float>(args, first_row + r, column, row, finish, columns);
    }
  }
}

inline size_t no_scratch(int64_t, int64_t) { return 0; }

// All rows of x times one panel of weights of T. `ahead` as in Pieces, for the first rows: the others find
// the panel in the second-level cache.
template <typename T>
void multiply_panel(const LinearArgs& args, int64_t panel, const void* weights, int64_t ahead) {
  const int64_t depth = weight_depth<T>(args.k);
  const int64_t a_stride = staged_stride<T>(args.k);
  const auto* a = static_cast<const Left<T>*>(args.staged);
  alignas(64) float block[kMaxRows * kPanelColumns];
  for (int64_t r = 0; r < args.m; r += kMaxRows) {
    const int64_t rows = args.m - r < kMaxRows ? args.m - r : kMaxRows;
    const Pieces b = {.pieces = &weights,
                      .num_pieces = 1,
                      .depth = depth,
                      .stride = kPanelColumns * Operand<T>::kStep,
                      .offset = 0,
                      .ahead = r == 0 ? ahead : 0};
    multiply_block<T>(a + r * a_stride, a_stride, rows, b, kPanelColumns, block, kPanelColumns);
    store_panel(args, r, rows, panel, block, kPanelColumns);
  }
}

// One row times kPanelsOfRow panels, which follow each other. A sum is a chain that waits for each of its
// steps: those of one panel alone take longer than reading it.
constexpr int kPanelsOfRow = 2;

template <typename T>
void multiply_row(const LinearArgs& args, int64_t panel, const T* weights, int64_t ahead) {
  constexpr int kVectors = kPanelColumns / kLanes;
  const int64_t depth = weight_depth<T>(args.k);
  alignas(64) float block[kPanelsOfRow * kPanelColumns];
  const void* piece = weights;
  const Pieces b = {.pieces = &piece,
                    .num_pieces = 1,
                    .depth = depth,
                    .stride = kPanelColumns * Operand<T>::kStep,
                    .offset = 0,
                    .ahead = ahead,
                    .panel_stride = depth * kPanelColumns};
  multiply<T, 1, kVectors, kPanelsOfRow>(static_cast<const Left<T>*>(args.staged), 0, b, block, 0);
  for (int i = 0; i < kPanelsOfRow; ++i) store_panel(args, 0, 1, panel + i, block + i * kPanelColumns, 0);
}

// With few rows the weights come straight from memory, so they are prefetched, across the end of a panel too.
constexpr int64_t kPrefetchBytes = 4096;

// Panels of T, few rows or many.
template <typename T>
void multiply_panels(const LinearArgs& args, int64_t panel_begin, int64_t panel_end) {
  const int64_t panel_elements = weight_depth<T>(args.k) * kPanelColumns;
  const auto* weights = static_cast<const T*>(args.weight);
  int64_t panel = panel_begin;
  if (args.m == 1) {
    for (; panel + kPanelsOfRow <= panel_end; panel += kPanelsOfRow)
      multiply_row<T>(args, panel, weights + panel * panel_elements, kPrefetchBytes);
  }
  for (; panel < panel_end; ++panel)
    multiply_panel<T>(args, panel, weights + panel * panel_elements, kPrefetchBytes);
}

template <typename T>
void linear(const LinearArgs& args, int64_t panel_begin, int64_t panel_end, void*) {
  multiply_panels<T>(args, panel_begin, panel_end);
}

// A panel of int8 as one of T.
template <typename T>
size_t unpacked_bytes(int64_t m, int64_t k) {
  return m > kMaxRows ? static_cast<size_t>(weight_depth<T>(k) * kPanelColumns) * sizeof(T) : 0;
}

inline void unpack_panel(float* out, const Int8For<float>* from, int64_t depth) {
  for (int64_t i = 0; i < depth * kPanelColumns; i += kLanes) store(out + i, load(&from[i].value));
}
inline void unpack_panel(bf16* out, const Int8For<bf16>* from, int64_t depth) {
  for (int64_t d = 0; d < depth; d += 2, from += 2 * kPanelColumns)
    for (int64_t j = 0; j < kPanelColumns; j += kLanes, out += 2 * kLanes)
      store_pairs(out, Operand<Int8For<bf16>>::right(from + j));
}

// Few rows are multiplied with int8 that are converted in registers, as they come; more with a panel that is
// converted once. The numbers are the same, and so is their order.
template <typename T>
void linear_int8(const LinearArgs& args, int64_t panel_begin, int64_t panel_end, void* scratch) {
  if (args.m <= kMaxRows) return multiply_panels<Int8For<T>>(args, panel_begin, panel_end);
  const int64_t depth = weight_depth<T>(args.k);
  for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
    const auto* weights = static_cast<const Int8For<T>*>(args.weight) + panel * depth * kPanelColumns;
    unpack_panel(static_cast<T*>(scratch), weights, depth);
    multiply_panel<T>(args, panel, scratch, 0);
  }
}

// ---- attention ------------------------------------------------------------------------------------

template <typename T>
void stage_query(void* staged, const void* x, int64_t n, int64_t depth) {
  stage_row<T>(static_cast<Left<T>*>(staged), static_cast<const T*>(x), n, depth);
}

template <typename T>
void scores(const void* query, int rows, const void* const* pages, int block_size, int depth, int first,
            int last, float* out) {
  for (int column = first; column < last;) {
    const int page = column / block_size;
    const int page_end = (page + 1) * block_size;
    const int end = page_end < last ? page_end : last;
    const Pieces b = {.pieces = pages + page,
                      .num_pieces = 1,
                      .depth = depth,
                      .stride = int64_t{block_size} * Operand<T>::kStep,
                      .offset = int64_t{column - page * block_size} * Operand<T>::kStep,
                      .ahead = 0};
    multiply_block<T>(static_cast<const Left<T>*>(query), depth, rows, b, end - column, out + column,
                      kPartitionStride);
    column = end;
  }
}

template <typename T>
void values(const void* probabilities, int rows, const void* const* groups, int group_tokens, int num_groups,
            int head_size, float* out) {
  const Pieces b = {.pieces = groups,
                    .num_pieces = num_groups,
                    .depth = group_tokens,
                    .stride = int64_t{head_size} * Operand<T>::kStep,
                    .offset = 0,
                    .ahead = 0};
  multiply_block<T>(static_cast<const Left<T>*>(probabilities), kPartitionStride, rows, b, head_size, out,
                    head_size);
}

}  // namespace
}  // namespace quire::cpu
