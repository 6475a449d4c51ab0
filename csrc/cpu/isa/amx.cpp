// bf16 matmuls on AMX tiles; the rest of the table is that of AVX-512. Compiled with flags of its own;
// see kernels.h for what may be included.
//
// A tile of the left operand holds 16 rows by 32 elements of depth, one of the right operand 32 of
// depth by 16 columns, in pairs, and tdpbf16ps takes 16 cycles whatever the number of rows. Four sums
// of 16 x 16 are kept at a time: fewer would wait for the latency of 52 cycles.
#include "isa/simd_avx512.h"

#include "isa/amx_tiles.h"
#include "isa/kernels.h"
#include "isa/matmul_table.h"

namespace quire::cpu {
namespace {

// ---- linear ---------------------------------------------------------------------------------------

int64_t tile_rows(int64_t m) { return m < kTileRows ? m : kTileRows; }

size_t staged_tiles_bytes(int64_t m, int64_t k) {
  return static_cast<size_t>((m + kTileRows - 1) / kTileRows * kTileRows * weight_depth<bf16>(k)) *
         sizeof(bf16);
}

// x tile by tile: [m / 16][K / 32][16][32], so that a tile is 16 whole lines in a row; in rows of x they
// would lie a power of two apart and evict each other. With fewer than 16 rows tiles are that short.
void stage_tiles(const LinearArgs& args, int64_t row_begin, int64_t row_end) {
  const int64_t depth = weight_depth<bf16>(args.k), height = tile_rows(args.m);
  for (int64_t r = row_begin; r < row_end; ++r) {
    const auto* from = input_row<bf16>(args, r);
    bf16* to =
        static_cast<bf16*>(args.staged) + r / kTileRows * kTileRows * depth + r % kTileRows * kStepDepth;
    int64_t i = 0;
    for (; i + kStepDepth <= args.k; i += kStepDepth, to += height * kStepDepth)
      _mm512_storeu_si512(to, _mm512_loadu_si512(from + i));
    if (i < args.k) {
      const auto mask = static_cast<__mmask32>((uint64_t{1} << (args.k - i)) - 1);
      _mm512_storeu_si512(to, _mm512_maskz_loadu_epi16(mask, from + i));
    }
  }
}

// A step's weights as tiles are loaded from them: where they lie, or as int8 that became bf16 in `lines`.
inline const char* step_lines(const bf16* weights, char*) { return reinterpret_cast<const char*>(weights); }
inline const char* step_lines(const Int8For<bf16>* weights, char* lines) {
  unpack_panel(reinterpret_cast<bf16*>(lines), weights, kStepDepth);
  return lines;
}

// Up to 32 rows: the weights, bf16 or int8 that become so on their way, come straight from memory and are
// prefetched, across the end of a panel too.
template <typename Weight, bool kTwoTiles>
void thin_panels(const LinearArgs& args, int64_t panel_begin, int64_t panel_end) {
  constexpr int64_t kPrefetchBytes = 4096 * sizeof(Weight);
  constexpr int64_t kStepWeights = kStepDepth * kPanelColumns;
  const int64_t depth = weight_depth<bf16>(args.k), steps = depth / kStepDepth;
  const int64_t height = tile_rows(args.m);
  configure(static_cast<int>(height), kTileRows, kStepDepth);
  alignas(64) float block[2 * kTileRows * kPanelColumns];
  alignas(64) char lines[2][kStepWeights * sizeof(bf16)];  // by turns: one is written while another is read
  const auto* weights = static_cast<const Weight*>(args.weight) + panel_begin * depth * kPanelColumns;
  for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
    const char* a0 = static_cast<const char*>(args.staged);
    const char* a1 = a0 + kTileRows * depth * 2;
    QUIRE_TILE_ZERO(0);
    QUIRE_TILE_ZERO(1);
    if constexpr (kTwoTiles) {
      QUIRE_TILE_ZERO(2);
      QUIRE_TILE_ZERO(3);
    }
    for (int64_t s = 0; s < steps; ++s, weights += kStepWeights) {
      const char* ahead = reinterpret_cast<const char*>(weights) + kPrefetchBytes;
      for (size_t line = 0; line < kStepWeights * sizeof(Weight); line += 64) prefetch(ahead + line);
      const char* b = step_lines(weights, lines[s % 2]);
      QUIRE_TILE_LOAD(4, a0, kStepBytes);
      QUIRE_TILE_LOAD(6, b, kPanelLine);
      QUIRE_TILE_LOAD(7, b + 64, kPanelLine);
      QUIRE_TILE_DOT(0, 4, 6);
      QUIRE_TILE_DOT(1, 4, 7);
      a0 += height * kStepBytes;
      if constexpr (kTwoTiles) {
        QUIRE_TILE_LOAD(5, a1, kStepBytes);
        QUIRE_TILE_DOT(2, 5, 6);
        QUIRE_TILE_DOT(3, 5, 7);
        a1 += kTileRows * kStepBytes;
      }
    }
    QUIRE_TILE_STORE(0, block, kPanelLine);
    QUIRE_TILE_STORE(1, block + kTileRows, kPanelLine);
    if constexpr (kTwoTiles) {
      QUIRE_TILE_STORE(2, block + kTileRows * kPanelColumns, kPanelLine);
      QUIRE_TILE_STORE(3, block + kTileRows * kPanelColumns + kTileRows, kPanelLine);
    }
    store_panel(args, 0, args.m, panel, block, kPanelColumns);
  }
}

// Blocking of more rows. A block of x (32 rows by kDepthBlock) stays in the first-level cache while a
// group of panels passes over it; the group's weights of that depth, and its sums in fp32, stay in the
// second level while all rows pass. The load hint "t1" keeps the weights, which stream from the second
// level, from driving x out of the first. What comes from further away is asked for one block ahead.
// Sums that rest between depth blocks are exact, so blocking changes no bit.
constexpr int64_t kDepthBlock = 256;
constexpr int64_t kGroupPanels = 8;
constexpr int64_t kRowBlock = 512;
constexpr int64_t kPairRows = 2 * kTileRows;
constexpr int64_t kBlockSums = kPairRows * kPanelColumns;  // 32 x 32, row-major, in one piece
constexpr int64_t kStepTileBytes = kTileRows * kStepBytes;
constexpr int64_t kStepPanelBytes = kTileRows * kPanelLine;

size_t block_scratch_bytes(int64_t m, int64_t) {
  if (m <= kPairRows) return 0;
  const int64_t rows = m < kRowBlock ? (m + kPairRows - 1) / kPairRows * kPairRows : kRowBlock;
  return static_cast<size_t>(rows * kGroupPanels * kPanelColumns) * sizeof(float);
}

// What a block asks for while it computes, a few lines per step of depth.
struct Ahead {
  const char* weights;  // for the next depth block or group
  int weight_lines;     // per step
  const char* x;        // of the next 32 rows
  int x_lines;          // per step
  const float* sums;    // to be resumed next
  char* out;            // rows about to be stored, two per step, as if side by side; may be null
  int64_t out_stride;
};

// sums[32, 32] (+)= x[32, steps * 32] * b[steps * 32, 32]; x comes as two columns of tiles.
template <bool kTwoTiles>
void multiply_block(const char* upper, const char* lower, const char* b, int64_t steps, float* sums,
                    bool resume, Ahead ahead) {
  float* lower_sums = sums + kTileRows * kPanelColumns;
  QUIRE_TILE_ZERO(0);
  QUIRE_TILE_ZERO(1);
  QUIRE_TILE_ZERO(2);
  QUIRE_TILE_ZERO(3);
  if (resume) {
    QUIRE_TILE_LOAD(0, sums, kPanelLine);
    QUIRE_TILE_LOAD(1, sums + kTileRows, kPanelLine);
    if constexpr (kTwoTiles) {
      QUIRE_TILE_LOAD(2, lower_sums, kPanelLine);
      QUIRE_TILE_LOAD(3, lower_sums + kTileRows, kPanelLine);
    }
  }
  const char* next_sums = reinterpret_cast<const char*>(ahead.sums);
  for (int64_t s = 0; s < steps; ++s) {
    QUIRE_TILE_LOAD(4, upper, kStepBytes);
    QUIRE_TILE_STREAM(6, b, kPanelLine);
    QUIRE_TILE_DOT(0, 4, 6);
    QUIRE_TILE_STREAM(7, b + 64, kPanelLine);
    QUIRE_TILE_DOT(1, 4, 7);
    if constexpr (kTwoTiles) {
      QUIRE_TILE_LOAD(5, lower, kStepBytes);
      QUIRE_TILE_DOT(2, 5, 6);
      QUIRE_TILE_DOT(3, 5, 7);
    }
    upper += kStepTileBytes;
    lower += kStepTileBytes;
    b += kStepPanelBytes;
    for (int i = 0; i < ahead.weight_lines; ++i, ahead.weights += 64)
      _mm_prefetch(ahead.weights, _MM_HINT_T1);
    for (int i = 0; i < ahead.x_lines; ++i, ahead.x += 64) _mm_prefetch(ahead.x, _MM_HINT_T1);
    if (resume) {
      for (int i = 0; i < 4; ++i, next_sums += 64) _mm_prefetch(next_sums, _MM_HINT_T0);
    }
    if (ahead.out != nullptr) {
      for (int i = 0; i < 2; ++i, ahead.out += ahead.out_stride) __builtin_prefetch(ahead.out, 1);
    }
  }
  QUIRE_TILE_STORE(0, sums, kPanelLine);
  QUIRE_TILE_STORE(1, sums + kTileRows, kPanelLine);
  if constexpr (kTwoTiles) {
    QUIRE_TILE_STORE(2, lower_sums, kPanelLine);
    QUIRE_TILE_STORE(3, lower_sums + kTileRows, kPanelLine);
  }
}

int64_t fewest(int64_t a, int64_t b) { return a < b ? a : b; }

// Rows [row, row + rows) of x by panels [group, group + panels), 32 columns of depth block after another.
struct GroupBlock {
  int64_t row, rows;
  int64_t group, panels, panel_end;
  int64_t step, count, steps;  // tiles of depth: this block's, and all
};

void multiply_group(const LinearArgs& args, const GroupBlock& g, float* sums) {
  const int64_t panel_bytes = g.steps * kStepPanelBytes, column_bytes = g.steps * kStepTileBytes;
  const char* x = static_cast<const char*>(args.staged) + g.row / kTileRows * column_bytes;
  const char* weight = static_cast<const char*>(args.weight);
  const int64_t row_pairs = (g.rows + kPairRows - 1) / kPairRows;
  const bool last = g.step + g.count == g.steps;
  // The weights needed next: the same panels further down, or the next group from its top.
  const int64_t next_step = last ? 0 : g.step + g.count;
  const int64_t next_group = last ? g.group + kGroupPanels : g.group;
  const int64_t next_lines = fewest(kDepthBlock / kStepDepth, g.steps - next_step) * kStepPanelBytes / 64;
  const int64_t per_pair = (next_lines + row_pairs - 1) / row_pairs;
  const int64_t out_bytes = args.out_is_bf16 ? 2 : 4;
  for (int64_t pair = 0; pair < row_pairs; ++pair) {
    const int64_t first = g.row + pair * kPairRows;
    const int64_t valid = fewest(kPairRows, args.m - first);
    const char* upper = x + pair * 2 * column_bytes + g.step * kStepTileBytes;
    const char* next_x = pair + 1 < row_pairs ? upper + 2 * column_bytes : x + next_step * kStepTileBytes;
    const auto multiply = valid > kTileRows ? multiply_block<true> : multiply_block<false>;
    for (int64_t p = 0; p < g.panels; ++p) {
      const int64_t panel = g.group + p;
      float* block = sums + (pair * kGroupPanels + p) * kBlockSums;
      // The first half of the panels asks for the upper tiles of the next rows, the second for the lower.
      const int64_t half = (g.panels + 1) / 2, x_bytes = g.count * kStepTileBytes;
      const bool in_lower = p >= half;
      Ahead ahead = {
          .weights =
              weight + (next_group + p) * panel_bytes + next_step * kStepPanelBytes + pair * per_pair * 64,
          .weight_lines =
              next_group + p < g.panel_end ? static_cast<int>((per_pair + g.count - 1) / g.count) : 0,
          .x = next_x + (in_lower ? column_bytes : 0) + (in_lower ? p - half : p) * (x_bytes / half),
          .x_lines = static_cast<int>((kStepTileBytes / 64 + half - 1) / half),
          .sums = p + 1 < g.panels ? block + kBlockSums : sums + (pair + 1) * kGroupPanels * kBlockSums,
          .out = nullptr,
          .out_stride = args.out_stride * out_bytes};
      if (last)
        ahead.out = static_cast<char*>(args.out) +
                    (output_row(args, first) * args.out_stride + panel * kPanelColumns) * out_bytes;
      multiply(upper, upper + column_bytes, weight + panel * panel_bytes + g.step * kStepPanelBytes, g.count,
               block, g.step > 0, ahead);
      if (last) store_panel(args, first, valid, panel, block, kPanelColumns);
    }
  }
}

void thick_panels(const LinearArgs& args, int64_t panel_begin, int64_t panel_end, float* sums) {
  configure(kTileRows, kTileRows, kStepDepth);
  constexpr int64_t kBlockSteps = kDepthBlock / kStepDepth;
  const int64_t steps = weight_depth<bf16>(args.k) / kStepDepth;
  for (int64_t row = 0; row < args.m; row += kRowBlock)
    for (int64_t group = panel_begin; group < panel_end; group += kGroupPanels)
      for (int64_t step = 0; step < steps; step += kBlockSteps)
        multiply_group(args,
                       {.row = row,
                        .rows = fewest(kRowBlock, args.m - row),
                        .group = group,
                        .panels = fewest(kGroupPanels, panel_end - group),
                        .panel_end = panel_end,
                        .step = step,
                        .count = fewest(kBlockSteps, steps - step),
                        .steps = steps},
                       sums);
}

template <typename Weight>
void thin_panels(const LinearArgs& args, int64_t panel_begin, int64_t panel_end) {
  if (args.m <= kTileRows) {
    thin_panels<Weight, false>(args, panel_begin, panel_end);
  } else {
    thin_panels<Weight, true>(args, panel_begin, panel_end);
  }
}

void linear_bf16(const LinearArgs& args, int64_t panel_begin, int64_t panel_end, void* scratch) {
  if (args.m <= kPairRows) return thin_panels<bf16>(args, panel_begin, panel_end);
  thick_panels(args, panel_begin, panel_end, static_cast<float*>(scratch));
}

// Columns from the first one of `panel` on, with weights of their own.
LinearArgs from_panel(LinearArgs args, int64_t panel, const void* weight) {
  const int64_t column = panel * kPanelColumns;
  args.weight = weight;
  args.n -= column;
  args.out = static_cast<char*>(args.out) + column * (args.out_is_bf16 ? 2 : 4);
  if (args.scales != nullptr) args.scales += column;
  if (args.zero_points != nullptr) args.zero_points += column;
  if (args.bias != nullptr) args.bias += column;
  return args;
}

int64_t panel_weights(int64_t k) { return weight_depth<bf16>(k) * kPanelColumns; }

size_t int8_scratch_bytes(int64_t m, int64_t k) {
  if (m <= kPairRows) return 0;
  return block_scratch_bytes(m, k) + static_cast<size_t>(kGroupPanels * panel_weights(k)) * sizeof(bf16);
}

// Few rows are multiplied with int8 that are converted step by step, more with a group of panels that is
// converted once. The numbers are the same, and so is their order.
void linear_int8_bf16(const LinearArgs& args, int64_t panel_begin, int64_t panel_end, void* scratch) {
  if (args.m <= kPairRows) return thin_panels<Int8For<bf16>>(args, panel_begin, panel_end);
  auto* sums = static_cast<float*>(scratch);
  auto* unpacked = reinterpret_cast<bf16*>(static_cast<char*>(scratch) + block_scratch_bytes(args.m, args.k));
  for (int64_t group = panel_begin; group < panel_end; group += kGroupPanels) {
    const int64_t count = fewest(kGroupPanels, panel_end - group);
    const auto* weights = static_cast<const Int8For<bf16>*>(args.weight) + group * panel_weights(args.k);
    unpack_panel(unpacked, weights, count * weight_depth<bf16>(args.k));
    thick_panels(from_panel(args, group, unpacked), 0, count, sums);
  }
}

// ---- attention ------------------------------------------------------------------------------------

int clamp_rows(int rows) { return rows < 0 ? 0 : rows < kTileRows ? rows : kTileRows; }

// out[rows <= 32, 16 or 32 columns] = a * b, where b comes in `num_pieces` pieces of `piece_steps` steps.
struct TileProduct {
  const char* a;
  int64_t a_stride;
  const void* const* pieces;
  int64_t piece_offset;
  int num_pieces;
  int piece_steps;
  int step_depth;
  int64_t b_stride;
  float* out;
  int64_t out_stride;
};

template <bool kTwoRows, bool kTwoColumns>
void multiply_pieces(const TileProduct& p) {
  QUIRE_TILE_ZERO(0);
  QUIRE_TILE_ZERO(1);
  QUIRE_TILE_ZERO(2);
  QUIRE_TILE_ZERO(3);
  const char* a = p.a;
  const int64_t a_stride = p.a_stride, b_stride = p.b_stride;
  const int64_t a_step = p.step_depth * 2, b_step = p.step_depth / 2 * b_stride;
  for (int i = 0; i < p.num_pieces; ++i) {
    const char* b = static_cast<const char*>(p.pieces[i]) + p.piece_offset;
    for (int s = 0; s < p.piece_steps; ++s, a += a_step, b += b_step) {
      QUIRE_TILE_LOAD(4, a, a_stride);
      QUIRE_TILE_LOAD(6, b, b_stride);
      QUIRE_TILE_DOT(0, 4, 6);
      if constexpr (kTwoColumns) {
        QUIRE_TILE_LOAD(7, b + 64, b_stride);
        QUIRE_TILE_DOT(1, 4, 7);
      }
      if constexpr (kTwoRows) {
        QUIRE_TILE_LOAD(5, a + kTileRows * a_stride, a_stride);
        QUIRE_TILE_DOT(2, 5, 6);
        if constexpr (kTwoColumns) QUIRE_TILE_DOT(3, 5, 7);
      }
    }
  }
  float* lower = p.out + kTileRows * p.out_stride;
  QUIRE_TILE_STORE(0, p.out, p.out_stride * 4);
  if constexpr (kTwoColumns) QUIRE_TILE_STORE(1, p.out + kTileRows, p.out_stride * 4);
  if constexpr (kTwoRows) {
    QUIRE_TILE_STORE(2, lower, p.out_stride * 4);
    if constexpr (kTwoColumns) QUIRE_TILE_STORE(3, lower + kTileRows, p.out_stride * 4);
  }
}

void multiply_pieces(const TileProduct& p, int rows, bool two_columns) {
  if (rows > kTileRows) {
    two_columns ? multiply_pieces<true, true>(p) : multiply_pieces<true, false>(p);
  } else {
    two_columns ? multiply_pieces<false, true>(p) : multiply_pieces<false, false>(p);
  }
}

void configure_rows(int rows, int depth) {
  const int lower = clamp_rows(rows - kTileRows);
  configure(clamp_rows(rows), lower == 0 ? kTileRows : lower, depth);
}

void scores_bf16(const void* query, int rows, const void* const* pages, int block_size, int depth, int first,
                 int last, float* out) {
  configure_rows(rows, kStepDepth);
  for (int column = first; column < last;) {
    const int page = column / block_size, page_end = (page + 1) * block_size;
    const bool two = (page_end < last ? page_end : last) - column >= 2 * kTileRows;
    multiply_pieces({.a = static_cast<const char*>(query),
                     .a_stride = int64_t{depth} * 2,
                     .pieces = pages + page,
                     .piece_offset = int64_t{column - page * block_size} * 4,
                     .num_pieces = 1,
                     .piece_steps = depth / kStepDepth,
                     .step_depth = kStepDepth,
                     .b_stride = int64_t{block_size} * 4,
                     .out = out + column,
                     .out_stride = kPartitionStride},
                    rows, two);
    column += two ? 2 * kTileRows : kTileRows;
  }
}

void values_bf16(const void* probabilities, int rows, const void* const* groups, int group_tokens,
                 int num_groups, int head_size, float* out) {
  configure_rows(rows, group_tokens);
  for (int column = 0; column < head_size;) {
    const bool two = head_size - column >= 2 * kTileRows;
    multiply_pieces({.a = static_cast<const char*>(probabilities),
                     .a_stride = kPartitionStride * 2,
                     .pieces = groups,
                     .piece_offset = int64_t{column} * 4,
                     .num_pieces = num_groups,
                     .piece_steps = 1,
                     .step_depth = group_tokens,
                     .b_stride = int64_t{head_size} * 4,
                     .out = out + column,
                     .out_stride = head_size},
                    rows, two);
    column += two ? 2 * kTileRows : kTileRows;
  }
}

constexpr MatmulKernels amx_kernels() {
  MatmulKernels kernels = matmul_kernels();
  kernels.release = release;
  kernels.linear[kLinearBF16] = {staged_tiles_bytes, stage_tiles, block_scratch_bytes, linear_bf16};
  kernels.linear[kLinearInt8BF16] = {staged_tiles_bytes, stage_tiles, int8_scratch_bytes, linear_int8_bf16};
  kernels.scores[kBF16] = scores_bf16;
  kernels.values[kBF16] = values_bf16;
  return kernels;
}

}  // namespace

constinit const MatmulKernels kAmxMatmul = amx_kernels();

}  // namespace quire::cpu
