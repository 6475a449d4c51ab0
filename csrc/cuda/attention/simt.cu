// Attention in plain fp32 arithmetic: for fp32 caches, and head sizes that the tensor-core kernels lack.
//
// One warp per (token, query head), in blocks of four heads of a token. A lane has one key of 32 while scores
// are summed, and columns lane, lane + 32, ... while values are.
#include <type_traits>

#include "attention/kv_layout.cuh"
#include "attention/params.h"
#include "common/launch.h"
#include "common/types.cuh"

namespace quire::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kMaxHeadSize = 256;

// The row that owns `token`, or num_rows for padding; the same in all lanes.
__device__ int row_of_token(const AttentionParams& p, int token, int lane) {
  int rows_before = 0;
  for (int i = lane; i < p.num_rows; i += 32) rows_before += p.query_start_loc[i + 1] <= token ? 1 : 0;
  return __reduce_add_sync(0xFFFFFFFFU, rows_before);
}

template <typename T>
__global__ void __launch_bounds__(32 * kWarps)
    simt_attention_kernel(const __grid_constant__ AttentionParams p) {
  constexpr int kVec = 16 / sizeof(T);
  __shared__ float shared_query[kWarps][kMaxHeadSize];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int token = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y) * kWarps + warp;
  const int row = row_of_token(p, token, lane);
  if (head >= p.num_heads || row >= p.num_rows) return;
  const int d = p.head_size, kv_head = head / p.num_queries_per_kv;
  const int atom_shift = kv_atom_shift(d, sizeof(T));
  const T* from = static_cast<const T*>(p.query) + token * p.query_stride + head * p.query_head_stride;
  float* query = shared_query[warp];
  for (int i = lane; i < d; i += 32) query[i] = to_float(from[i]);
  __syncwarp();

  const int position = p.seq_lens[row] - (p.query_start_loc[row + 1] - token);
  const int first = p.sliding_window > 0 ? max(0, position - p.sliding_window + 1) : 0;
  const float slope = p.alibi_slopes != nullptr ? p.alibi_slopes[head] : 0.0F;
  const int32_t* block_ids = p.block_table + p.state_indices[row] * p.block_table_stride;
  // The group of `key`, keys or values.
  const auto group = [&](int values, int key) {
    const int block = block_ids[key >> p.block_shift];
    return reinterpret_cast<const T*>(p.cache + block * p.page_stride_bytes +
                                      kv_group_offset(values, kv_head, key & (p.block_size - 1),
                                                      p.num_kv_heads, p.block_size,
                                                      d * static_cast<int>(sizeof(T))));
  };

  float max = p.sinks != nullptr ? p.sinks[head] : -__builtin_huge_valf();
  float sum = p.sinks != nullptr ? 1.0F : 0.0F;
  float out[kMaxHeadSize / 32] = {};
  for (int base = first; base <= position; base += 32) {
    const int key = base + lane;
    float score = -__builtin_huge_valf();
    if (key <= position) {
      const T* keys = group(0, key);
      float dot = 0.0F;
      for (int chunk = 0; chunk < d / kVec; ++chunk) {
        const auto x =
            Vec<T>::load(keys + kv_group_chunk(atom_shift, d / kVec, key % kGroupTokens, chunk) * kVec);
#pragma unroll
        for (int i = 0; i < kVec; ++i) dot += query[chunk * kVec + i] * to_float(x.x[i]);
      }
      score = dot * p.scale;
      if (p.soft_cap > 0.0F) score = p.soft_cap * tanhf(score / p.soft_cap);
      score += slope * static_cast<float>(key - position);
    }
    const float new_max = fmaxf(max, warp_max(score));
    const float rescale = expf(max - new_max), weight = expf(score - new_max);
    max = new_max;
    sum = sum * rescale + warp_sum(weight);
#pragma unroll
    for (float& x : out) x *= rescale;
    const int count = min(32, position - base + 1);
    for (int j = 0; j < count; ++j) {
      const float w = __shfl_sync(0xFFFFFFFFU, weight, j);
      const T* values = group(1, base + j);
#pragma unroll
      for (int i = 0; i < kMaxHeadSize / 32; ++i) {
        const int column = lane + 32 * i;
        if (column >= d) break;
        const int chunk = kv_group_chunk(atom_shift, d / kVec, (base + j) % kGroupTokens, column / kVec);
        out[i] += w * to_float(values[chunk * kVec + column % kVec]);
      }
    }
  }
  T* to = static_cast<T*>(p.out) + token * p.out_stride + head * p.out_head_stride;
#pragma unroll
  for (int i = 0; i < kMaxHeadSize / 32; ++i)
    if (lane + 32 * i < d) to[lane + 32 * i] = from_float<T>(out[i] / sum);
}

}  // namespace

void launch_simt(const LaunchContext& ctx, const AttentionParams& p, DType dtype) {
  const dim3 grid(static_cast<unsigned>(p.num_tokens), static_cast<unsigned>(ceil_div(p.num_heads, kWarps)));
  dispatch_float(
      dtype, [&]<typename T>(T) { simt_attention_kernel<T><<<grid, 32 * kWarps, 0, stream_of(ctx)>>>(p); });
  check_launch(ctx, "simt_attention", "[%d tokens, %d heads, %d KV heads, %d]", p.num_tokens, p.num_heads,
               p.num_kv_heads, p.head_size);
}

}  // namespace quire::cuda
