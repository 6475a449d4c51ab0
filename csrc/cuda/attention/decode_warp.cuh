// What a warp of the decode kernel does with its group of keys and values, and how a block's warps become
// one.
#pragma once

#include <algorithm>

#include "attention/decode_work.cuh"

namespace quire::cuda {

// Softmax sums in the making: sum of 2^(score - max), and the output times that.
struct MaxSum {
  float max = kNegativeInfinity, sum = 0.0F;
};

// The factor that brings a part's sums to the common maximum; 0 for a part without keys.
__device__ __forceinline__ float part_weight(float max, float common_max) {
  return max == kNegativeInfinity ? 0.0F : fast_exp2(max - common_max);
}

// Four columns of a head, of all parts so far.
struct Columns {
  MaxSum total;
  float4 values = {0.0F, 0.0F, 0.0F, 0.0F};

  // Adds kCount parts, of which those that are none have a maximum of -infinity.
  template <int kCount>
  __device__ __forceinline__ void add(const float2 (&max_sums)[kCount], const float4 (&parts)[kCount]) {
    float top = total.max;
#pragma unroll
    for (const float2& part : max_sums) top = fmaxf(top, part.x);
    const float old = part_weight(total.max, top);
    total = {top, total.sum * old};
    values = {values.x * old, values.y * old, values.z * old, values.w * old};
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const float weight = part_weight(max_sums[j].x, top);
      total.sum += max_sums[j].y * weight;
      values.x += parts[j].x * weight;
      values.y += parts[j].y * weight;
      values.z += parts[j].z * weight;
      values.w += parts[j].w * weight;
    }
  }
};

// What the keys have that all rows share.
__device__ __forceinline__ void add_common_prefix(const AttentionParams& p, int token, int head, int column,
                                                  Columns& sum) {
  constexpr int kAtOnce = 4;
  const int count = __ldcg(&p.plan->common_parts);
  for (int base = 0; base < count; base += kAtOnce) {
    float2 max_sums[kAtOnce];
    float4 parts[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      max_sums[j] = {kNegativeInfinity, 0.0F};
      parts[j] = {0.0F, 0.0F, 0.0F, 0.0F};
      if (base + j < count) {
        const int64_t at = p.common_prefix.place(base + j, token, head);
        max_sums[j] = __ldcg(p.common_prefix.max_sums + at);
        parts[j] = __ldcg(reinterpret_cast<const float4*>(p.common_prefix.out + at * p.head_size + column));
      }
    }
    sum.add(max_sums, parts);
  }
}

// A head's sink, in units of log2; 0 where there are none.
__device__ __forceinline__ float sink_of(const AttentionParams& p, int head) {
  return p.sinks != nullptr ? __ldg(p.sinks + head) * kLog2E : 0.0F;
}

// Of four columns of a head's own parts: with what it shares and the sink, divided by the sum.
template <typename T>
__device__ __forceinline__ void write_output(const AttentionParams& p, int token, int head, int column,
                                             Columns sum, float sink) {
  if (p.common_prefix.parts > 0) add_common_prefix(p, token, head, column, sum);
  auto& [total, out] = sum;
  if (p.sinks != nullptr) {
    const float top = fmaxf(sink, total.max);
    const float weight = part_weight(total.max, top);
    total.sum = total.sum * weight + fast_exp2(sink - top);
    out = {out.x * weight, out.y * weight, out.z * weight, out.w * weight};
  }
  const float inverse = 1.0F / total.sum;
  T* to = static_cast<T*>(p.out) + token * p.out_stride + head * p.out_head_stride + column;
  *reinterpret_cast<uint2*>(to) = {pack<T>(out.x * inverse, out.y * inverse),
                                   pack<T>(out.z * inverse, out.w * inverse)};
}

// A lane's share of one warp's work on a segment, up to 8 kHeadTiles heads of it. Keys are the rows of the
// tensor cores' products and heads their columns, so that 8 heads are no more work than there is: scores are
// K Q^T, the output is V^T times the weights. Of both a lane has heads 2 * (lane % 4) and the next of each 8,
// in rows lane / 4 and lane / 4 + 8 of each 16: of keys, then of columns of V.
template <typename T, int D, bool kOptions, int kStageCount, int kHeadTiles>
struct WarpState {
  using Shared = DecodeShared<D, kStageCount>;
  // Queries that would not fit the registers, and then what is being used of them.
  static constexpr bool kSharedQuery = D * kHeadTiles > 256;
  static_assert(!kSharedQuery || Shared::kQueryBytes > 0);
  using Scores = float[kHeadTiles][4];

  uint32_t query[kSharedQuery ? 1 : D / 16][2 * kHeadTiles];  // operand B
  float out[kHeadTiles][D / 16][4];
  float slope[kHeadTiles][2] = {};
  MaxSum total[kHeadTiles][2];  // sums of this lane's keys only

  // Registers of 16 elements of D.
  static __device__ __forceinline__ void load_query(const AttentionParams& p, const Segment& segment, int k,
                                                    int lane, uint32_t (&b)[2 * kHeadTiles]) {
    const T* from = static_cast<const T*>(p.query) + segment.token * p.query_stride + 16 * k + 2 * (lane % 4);
#pragma unroll
    for (int i = 0; i < 2 * kHeadTiles; ++i) {
      const int head = lane / 4 + 8 * (i / 2);
      b[i] = head < segment.num_heads ? *reinterpret_cast<const uint32_t*>(
                                            from + (segment.head + head) * p.query_head_stride + i % 2 * 8)
                                      : 0U;
    }
  }

  __device__ __forceinline__ void load_queries(const AttentionParams& p, const Segment& segment,
                                               uint4* shared_query, int lane, int warp) {
    if constexpr (kSharedQuery) {
#pragma unroll 1
      for (int k = warp; k < D / 16; k += Shared::kWarps) {
        load_query(p, segment, k, lane, query[0]);
        shared_query[32 * k] = {query[0][0], query[0][1], query[0][2], query[0][3]};
      }
      __syncthreads();
    } else {
#pragma unroll
      for (int k = 0; k < D / 16; ++k) load_query(p, segment, k, lane, query[k]);
    }
  }

  __device__ __forceinline__ void clear(const AttentionParams& p, const Segment& segment, int lane) {
#pragma unroll
    for (int t = 0; t < kHeadTiles; ++t) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int head = 8 * t + 2 * (lane % 4) + c;
        total[t][c] = MaxSum{};
        if (kOptions && p.alibi_slopes != nullptr && head < segment.num_heads)
          slope[t][c] = p.alibi_slopes[segment.head + head];
      }
#pragma unroll
      for (int n = 0; n < D / 16; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) out[t][n][e] = 0.0F;
    }
  }

  // scores = K Q^T of a group's 16 keys.
  __device__ __forceinline__ void multiply_keys(Scores& scores, const uint4* shared_query, uint32_t keys,
                                                int lane) {
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      uint32_t a[4];
      Group<D>::load_keys_as_rows(a, keys, k, lane);
      uint32_t (&b)[2 * kHeadTiles] = query[kSharedQuery ? 0 : k];
      if constexpr (kSharedQuery) {
        const uint4 x = shared_query[32 * k];
        b[0] = x.x, b[1] = x.y, b[2] = x.z, b[3] = x.w;
      }
#pragma unroll
      for (int t = 0; t < kHeadTiles; ++t) multiply_add<T>(scores[t], a, b[2 * t], b[2 * t + 1]);
    }
  }

  // In units of log2.
  __device__ __forceinline__ void scale_scores(Scores& scores, const AttentionParams& p,
                                               const DecodeCursor& work, float scale, int lane, int warp) {
    const int distance = work.group_token(warp) + lane / 4 - (work.seq_len - 1);
#pragma unroll
    for (int t = 0; t < kHeadTiles; ++t)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        scores[t][e] =
            scaled_score<kOptions>(scores[t][e], scale, p.soft_cap, slope[t][e % 2], distance + 8 * (e / 2));
  }

  // Of keys that do not count scores become -inf, and values, which may be NaN, zeros: 0 * NaN is NaN.
  __device__ __forceinline__ void mask(Scores& scores, const DecodeCursor& work, uint32_t values, int lane,
                                       int warp) {
    const int token = work.group_token(warp);
    const auto counts = [&](int key) { return token + key >= work.low && token + key < work.seq_len; };
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (counts(lane / 4 + 8 * (e / 2))) continue;
#pragma unroll
      for (int t = 0; t < kHeadTiles; ++t) scores[t][e] = kNegativeInfinity;
    }
    for (int i = lane; i < Group<D>::kChunks; i += 32)
      if (!counts(Group<D>::token_of(i))) store_zeros(values + static_cast<uint32_t>(i * 16));
    __syncwarp();
  }

  // Where a score is higher than all before: the highest is found, and what was summed is scaled to that.
  __device__ __forceinline__ void update_max(const Scores& scores) {
    bool higher = false;
#pragma unroll
    for (int t = 0; t < kHeadTiles; ++t)
#pragma unroll
      for (int e = 0; e < 4; ++e) higher |= scores[t][e] > total[t][e % 2].max;
    if (!__any_sync(0xFFFFFFFFU, higher)) return;
#pragma unroll
    for (int t = 0; t < kHeadTiles; ++t) {
      float rescale[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        MaxSum& sum = total[t][c];
        const float max = fmaxf(sum.max, rows_max(fmaxf(scores[t][c], scores[t][2 + c])));
        rescale[c] = fast_exp2(sum.max - max);
        sum = {max, sum.sum * rescale[c]};
      }
#pragma unroll
      for (int n = 0; n < D / 16; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) out[t][n][e] *= rescale[e % 2];
    }
  }

  // Weights, relative to the highest score so far, as operand B of V^T times them.
  __device__ __forceinline__ void weigh(const Scores& scores, uint32_t (&weights)[2 * kHeadTiles]) {
#pragma unroll
    for (int t = 0; t < kHeadTiles; ++t) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float weight[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          weight[c] = fast_exp2(scores[t][2 * r + c] - total[t][c].max);
          total[t][c].sum += weight[c];
        }
        weights[2 * t + r] = transposed(pack<T>(weight[0], weight[1]));
      }
    }
  }

  // out += V^T weights.
  __device__ __forceinline__ void add_values(const uint32_t (&weights)[2 * kHeadTiles], uint32_t values,
                                             int lane) {
#pragma unroll
    for (int n = 0; n < D / 16; ++n) {
      uint32_t a[4];
      Group<D>::load_values_as_rows(a, values, n, lane);
#pragma unroll
      for (int t = 0; t < kHeadTiles; ++t) multiply_add<T>(out[t][n], a, weights[2 * t], weights[2 * t + 1]);
    }
  }

  // The warp's group of the tile that `work` is at, from where its keys and values are in shared memory.
  __device__ __forceinline__ void add_group(const AttentionParams& p, const DecodeCursor& work,
                                            const uint4* shared_query, uint32_t keys, float scale, int lane,
                                            int warp) {
    Scores scores = {};
    uint32_t weights[2 * kHeadTiles];
    multiply_keys(scores, shared_query, keys, lane);
    scale_scores(scores, p, work, scale, lane, warp);
    if (!work.group_is_whole(warp)) mask(scores, work, keys + Group<D>::kBytes, lane, warp);
    update_max(scores);
    weigh(scores, weights);
    add_values(weights, keys + Group<D>::kBytes, lane);
  }

  // Columns that are merged at a time: as many of the heads there may be as there is room for.
  static constexpr int kMergeColumns = std::min(D, Shared::kMergeElements / (8 * kHeadTiles));

  // Where a head's column is in what a warp has for others: lanes that store at once go to different banks.
  static __device__ __forceinline__ int merge_place(int row, int column) {
    return row * kMergeColumns + (column ^ row / 2 % (kMergeColumns % 32 == 0 ? 4 : 2) * 8);
  }

  // The warps' shares become one: calls store(row, column, sum, values) for each four columns of each head.
  template <typename Store>
  __device__ __forceinline__ void merge_warps(int num_heads, float* merge, float2* max_sums, int lane,
                                              int warp, Store store) {
#pragma unroll
    for (int t = 0; t < kHeadTiles; ++t) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float sum = rows_sum(total[t][c].sum);
        if (lane < 4) max_sums[warp * kDecodeHeads + 8 * t + 2 * lane + c] = {total[t][c].max, sum};
      }
    }
#pragma unroll
    for (int column = 0; column < D; column += kMergeColumns) {
      const int width = D - column < kMergeColumns ? D - column : kMergeColumns;
      store_columns(merge + warp * Shared::kMergeElements, column, width, num_heads, lane);
      __syncthreads();
#pragma unroll 1
      for (int i = static_cast<int>(threadIdx.x) * 4; i < num_heads * width; i += Shared::kThreads * 4) {
        const int row = i / width, c = i % width;
        const float* from = merge + merge_place(row, c);
        MaxSum sum;
#pragma unroll
        for (int w = 0; w < Shared::kWarps; ++w) sum.max = fmaxf(sum.max, max_sums[w * kDecodeHeads + row].x);
        float4 merged = {0.0F, 0.0F, 0.0F, 0.0F};
#pragma unroll
        for (int w = 0; w < Shared::kWarps; ++w) {
          const float2 share = max_sums[w * kDecodeHeads + row];
          const float weight = part_weight(share.x, sum.max);
          const float4 values = *reinterpret_cast<const float4*>(from + w * Shared::kMergeElements);
          sum.sum += share.y * weight;
          merged.x += values.x * weight;
          merged.y += values.y * weight;
          merged.z += values.z * weight;
          merged.w += values.w * weight;
        }
        store(row, column + c, sum, merged);
      }
      __syncthreads();
    }
  }

  // Columns [column, column + width) of the first heads.
  __device__ __forceinline__ void store_columns(float* to, int column, int width, int num_heads,
                                                int lane) const {
#pragma unroll
    for (int t = 0; t < kHeadTiles; ++t) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int row = 8 * t + 2 * (lane % 4) + c;
        if (row >= num_heads) continue;
#pragma unroll
        for (int n = 0; n < D / 16; ++n) {
          if (16 * n < column || 16 * n >= column + width) continue;
#pragma unroll
          for (int r = 0; r < 2; ++r)
            to[merge_place(row, 16 * n + lane / 4 + 8 * r - column)] = out[t][n][2 * r + c];
        }
      }
    }
  }
};

}  // namespace quire::cuda
