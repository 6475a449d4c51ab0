// What one instruction set offers: plain functions over plain pointers.
//
// The files in this folder that are compiled for an instruction set beyond the baseline include only
// this header, the headers beside it and the C library. Any inline function they shared with the rest
// of the program (a TensorView member, a std:: template) could be kept by the linker in their version
// and crash an older machine, so views are unpacked and threads are split in the folder above.
//
// Every function here computes a row, a column or an element from its own inputs alone, in an order
// that depends on its length only. Batch invariance rests on that.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace quire::cpu {

// Entries that exist per dtype are indexed by this.
enum TypeIndex : int { kF32 = 0, kBF16 = 1 };

// How a linear's weight is stored, and its inputs.
enum LinearKind : int { kLinearF32 = kF32, kLinearBF16 = kBF16, kLinearInt8F32, kLinearInt8BF16 };
constexpr int kNumLinearKinds = 4;

// A packed weight is cut into panels of 32 outputs. fp32: [panel][K][32]. bf16: [panel][K / 2][32][2],
// with K padded to 32, so that a 64-byte line holds the operand of one vdpbf16ps and sixteen lines
// hold that of one tdpbf16ps. int8: [panel][K][32], with K padded likewise where the inputs are bf16.
constexpr int64_t kPanelColumns = 32;
constexpr int64_t kDepthAlign = 32;

// Attention takes 32 query rows (query heads of one KV head, token after token) against 256 tokens at a
// time. A partition begins at a multiple of 256 whatever the batch, and partitions are folded in order.
constexpr int kQueryRows = 32;
constexpr int kPartitionTokens = 256;
// Scores and probabilities of a row: a little more than a partition, so that rows do not lie a power of
// two apart, where they would compete for the same few lines of the first-level cache.
constexpr int kPartitionStride = kPartitionTokens + 32;
// The running maximum before any score: finite, so that differences of maxima are never NaN.
constexpr float kNoScore = -1e30F;

struct RowKernels {
  // out = x / sqrt(mean(x^2) + eps) * (weight_offset + weight), for `rows` rows whose starts are `*_stride`
  // elements apart.
  void (*rms_norm[2])(void* out, int64_t out_stride, const void* x, int64_t x_stride, const void* weight,
                      int64_t rows, int64_t n, float eps, float weight_offset);
  // residual += x, rounded; out = rms_norm(residual). One row.
  void (*add_rms_norm[2])(void* out, void* residual, const void* x, const void* weight, int64_t n, float eps,
                          float weight_offset);
  // Rotates (head[i], head[i + half]) of each head by the angles of one token.
  void (*rotate[2])(void* heads, int64_t num_heads, int64_t head_stride, const float* cos, const float* sin,
                    int64_t half);
  // out = activation(x) * factor, or without `factor` activation(x). `out` may be `x`.
  void (*silu[2])(void* out, const void* x, const void* factor, int64_t n);
  void (*gelu_tanh[2])(void* out, const void* x, const void* factor, int64_t n);
  // x = cap * tanh(x / cap), of one row.
  void (*soft_cap)(float* x, int64_t n, float cap);
};

struct SamplingKernels {
  float (*max)(const float* x, int64_t n);       // NaN when an element is
  int64_t (*argmax)(const float* x, int64_t n);  // the lowest index on ties; -1 when an element is NaN
  // Sum of exp((x - max) * scale); stored to `out` too unless it is null. `out` may be `x`.
  double (*exp_sum)(float* out, const float* x, int64_t n, float max, float scale);
  void (*subtract)(float* out, const float* x, int64_t n, float value);
  // Appends the (index, value) of every x > threshold in index order; returns how many.
  int64_t (*collect_above)(const float* x, int64_t n, float threshold, int32_t* indices, float* values);
  // A draw from the softmax of x * scale, as draw_math.h has it: the index of the highest score. No NaN in x.
  int64_t (*draw)(const float* x, int64_t n, float scale, uint64_t seed, int64_t position);
  // The masses of all whose weight is at least `min_p`; `highest` is the highest of x.
  uint64_t (*mass_sum)(const float* x, int64_t n, float highest, float scale, float min_p);
};

struct LinearArgs {
  const void* x;  // [m, k], rows x_stride elements apart
  int64_t x_stride;
  int64_t m, n, k;
  const void* weight;  // packed
  void* out;           // [m, n], rows out_stride elements apart
  int64_t out_stride;
  bool out_is_bf16;
  const float* bias;  // [n] or null
  void* staged;       // x as `stage` rewrote it
  // For int8 weights, else null: out = (sum - zero_points[n] * row_sums[m]) * scales[n] + bias[n]
  const float* scales;       // [n]
  const float* zero_points;  // [n] or null
  const float* row_sums;     // [m] of x, where there are zero_points
  // Rows that lie scattered. Products are added to rows of out, rounded once with the sum, or else become
  // them.
  const int32_t* x_rows = nullptr;  // [m] of x; null: its first m
  const int32_t* add_to = nullptr;  // [m] of out; null: its first m, not added to
};

struct LinearKernels {
  // x is rewritten once per linear into what the kernel reads best.
  size_t (*staged_bytes)(int64_t m, int64_t k);
  // Rows [row_begin, row_end); row_begin is a multiple of 16.
  void (*stage)(const LinearArgs& args, int64_t row_begin, int64_t row_end);
  // Scratch of one thread.
  size_t (*scratch_bytes)(int64_t m, int64_t k);
  void (*multiply)(const LinearArgs& args, int64_t panel_begin, int64_t panel_end, void* scratch);
};

// One row of scores within one partition.
struct SoftmaxRow {
  const float* scores;  // [kPartitionTokens]
  void* probabilities;  // [kPartitionTokens] of the staged type
  int first, last;      // columns written: multiples of 16
  int begin, end;       // columns the row attends to; the others get probability 0
  float scale, soft_cap, alibi_slope;
  int query_column;  // the row's own position relative to the partition
};

struct MatmulKernels {
  // Tasks that call a matmul end with this (AMX gives its tiles back); may be null.
  void (*release)();

  LinearKernels linear[kNumLinearKinds];

  // Bytes of an element of the staged query and of the probabilities.
  int staged_element_bytes[2];
  // staged[0:n] = x[0:n], zeros up to depth.
  void (*stage_query[2])(void* staged, const void* x, int64_t n, int64_t depth);
  // scores[r, c] = sum over depth of query[r, :] * keys[:, c] for columns [first, last), multiples of 16.
  //   query [rows, depth] staged; pages[i]: the keys of tokens [i * block_size, ...) of the partition, fp32
  //   [depth][block_size] or bf16 [depth / 2][block_size][2]; scores [rows, kPartitionStride]
  void (*scores[2])(const void* query, int rows, const void* const* pages, int block_size, int depth,
                    int first, int last, float* scores);
  // Writes the probabilities, relative to the returned maximum (in units of log2), and their sum.
  void (*softmax[2])(const SoftmaxRow& row, float* max, float* sum);
  // out[r, :] = sum over tokens of probabilities[r, t] * values[t, :].
  //   probabilities [rows, kPartitionStride]; groups[i]: values of tokens [i * group_tokens, ...), fp32
  //   [group_tokens][head_size] or bf16 [group_tokens / 2][head_size][2]; out [rows, head_size]
  void (*values[2])(const void* probabilities, int rows, const void* const* groups, int group_tokens,
                    int num_groups, int head_size, float* out);
  // Folds the next partition of each row into the running one.
  void (*fold)(int rows, int head_size, float* acc, float* max, float* sum, const float* part,
               const float* part_max, const float* part_sum);
  // out = acc / (sum + the sink's share), or 0 when the sum is. `sink` may be null.
  void (*finish[2])(void* out, const float* acc, float max, float sum, const float* sink, int head_size);
};

struct Isa {
  const RowKernels& rows;
  const SamplingKernels& sampling;
  const MatmulKernels& matmul;
};

extern const RowKernels kGenericRows, kAvx2Rows, kAvx512Rows;
extern const SamplingKernels kGenericSampling, kAvx2Sampling, kAvx512Sampling;
extern const MatmulKernels kGenericMatmul, kAvx2Matmul, kAvx512Matmul, kAmxMatmul;

}  // namespace quire::cpu
