// What a warp of the decode kernel does with its group of keys and values, and how a block's warps become
// one.
#pragma once

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
  constexpr int kAtOnce = 8;
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

// A lane's share of one warp's work on a segment. Accumulators have 16 rows, one for each head; a lane has
// columns 2 * (lane % 4) and the next of each 8, of rows lane / 4 and lane / 4 + 8.
template <typename T, int D, bool kOptions, int kStageCount>
struct WarpState {
  using Shared = DecodeShared<D, kStageCount>;

  // Operand A: all of it, or what is being used of the shared queries.
  uint32_t query[Shared::kSharedQuery ? 1 : D / 16][4];
  float out[D / 8][4];
  float slope[2] = {0.0F, 0.0F};
  MaxSum total[2];  // of this lane's columns only

  // Registers of 16 elements of D.
  static __device__ __forceinline__ void load_query(const AttentionParams& p, const Segment& segment, int k,
                                                    int lane, uint32_t (&a)[4]) {
    const T* from = static_cast<const T*>(p.query) + segment.token * p.query_stride + 16 * k + 2 * (lane % 4);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + 8 * (i % 2);
      a[i] = row < segment.num_heads ? *reinterpret_cast<const uint32_t*>(
                                           from + (segment.head + row) * p.query_head_stride + i / 2 * 8)
                                     : 0U;
    }
  }

  __device__ __forceinline__ void load_queries(const AttentionParams& p, const Segment& segment,
                                               uint4* shared_query, int lane, int warp) {
    if constexpr (Shared::kSharedQuery) {
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
    for (int r = 0; r < 2; ++r) {
      const int row = lane / 4 + 8 * r;
      total[r] = MaxSum{};
      if (kOptions && p.alibi_slopes != nullptr && row < segment.num_heads)
        slope[r] = p.alibi_slopes[segment.head + row];
    }
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) out[n][e] = 0.0F;
  }

  // scores = Q K^T of a group's 16 keys.
  __device__ __forceinline__ void multiply_keys(float (&scores)[2][4], const uint4* shared_query,
                                                uint32_t keys, int lane) {
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      uint32_t b[4];
      Group<D>::load_keys(b, keys, k, lane);
      uint32_t (&a)[4] = query[Shared::kSharedQuery ? 0 : k];
      if constexpr (Shared::kSharedQuery) {
        const uint4 x = shared_query[32 * k];
        a[0] = x.x, a[1] = x.y, a[2] = x.z, a[3] = x.w;
      }
      multiply_add<T>(scores[0], a, b[0], b[1]);
      multiply_add<T>(scores[1], a, b[2], b[3]);
    }
  }

  // In units of log2; -inf for keys that do not count.
  __device__ __forceinline__ void scale_and_mask(float (&scores)[2][4], const AttentionParams& p,
                                                 const DecodeCursor& work, float scale, int lane, int warp) {
    const int first_key = work.group_token(warp) + 2 * (lane % 4);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int key = first_key + 8 * n + e % 2;
        const float score =
            scaled_score<kOptions>(scores[n][e], scale, p.soft_cap, slope[e / 2], key - (work.seq_len - 1));
        scores[n][e] = key >= work.low && key < work.seq_len ? score : kNegativeInfinity;
      }
    }
  }

  // Scores become weights, relative to the highest score so far; what was summed before is scaled to that.
  __device__ __forceinline__ void update_softmax(float (&scores)[2][4]) {
    float rescale[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float top = quad_max(fmaxf(fmaxf(scores[0][2 * r], scores[0][2 * r + 1]),
                                       fmaxf(scores[1][2 * r], scores[1][2 * r + 1])));
      const float max = fmaxf(total[r].max, top);
      rescale[r] = fast_exp2(total[r].max - max);
      total[r].max = max;
      total[r].sum *= rescale[r];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int e = 2 * r; e < 2 * r + 2; ++e) {
          scores[n][e] = fast_exp2(scores[n][e] - max);
          total[r].sum += scores[n][e];
        }
      }
    }
    if (__any_sync(0xFFFFFFFFU, rescale[0] != 1.0F || rescale[1] != 1.0F)) {
#pragma unroll
      for (int n = 0; n < D / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) out[n][e] *= rescale[e / 2];
    }
  }

  // out += weights V.
  __device__ __forceinline__ void add_values(const float (&weights)[2][4], uint32_t values, int lane) {
    const uint32_t a[4] = {pack<T>(weights[0][0], weights[0][1]), pack<T>(weights[0][2], weights[0][3]),
                           pack<T>(weights[1][0], weights[1][1]), pack<T>(weights[1][2], weights[1][3])};
#pragma unroll
    for (int n = 0; n < D / 16; ++n) {
      uint32_t b[4];
      Group<D>::load_values(b, values, n, lane);
      multiply_add<T>(out[2 * n], a, b[0], b[1]);
      multiply_add<T>(out[2 * n + 1], a, b[2], b[3]);
    }
  }

  // The warp's group of the tile that `work` is at, from where its keys and values are in shared memory.
  __device__ __forceinline__ void add_group(const AttentionParams& p, const DecodeCursor& work,
                                            const uint4* shared_query, uint32_t keys, float scale, int lane,
                                            int warp) {
    float scores[2][4] = {};
    multiply_keys(scores, shared_query, keys, lane);
    scale_and_mask(scores, p, work, scale, lane, warp);
    update_softmax(scores);
    add_values(scores, keys + Group<D>::kBytes, lane);
  }

  // The warps' shares become one: calls store(row, column, sum, values) for each four columns of each head.
  template <typename Store>
  __device__ __forceinline__ void merge_warps(int num_heads, float* merge, float2* max_sums, int lane,
                                              int warp, Store store) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = quad_sum(total[r].sum);
      if (lane % 4 == 0) max_sums[warp * kDecodeHeads + lane / 4 + 8 * r] = {total[r].max, sum};
    }
    const int max_width = Shared::kMergeElements / (num_heads <= 4 ? 4 : num_heads <= 8 ? 8 : 16);
    for (int column = 0; column < D; column += max_width) {
      const int width = min(max_width, D - column);
      store_columns(merge + warp * Shared::kMergeElements, column, width, num_heads, lane);
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x) * 4; i < num_heads * width; i += Shared::kThreads * 4) {
        const int row = i / width, c = column + i % width;
        MaxSum sum;
#pragma unroll
        for (int w = 0; w < Shared::kWarps; ++w) sum.max = fmaxf(sum.max, max_sums[w * kDecodeHeads + row].x);
        float4 merged = {0.0F, 0.0F, 0.0F, 0.0F};
#pragma unroll
        for (int w = 0; w < Shared::kWarps; ++w) {
          const float2 share = max_sums[w * kDecodeHeads + row];
          const float weight = part_weight(share.x, sum.max);
          const float4 values = *reinterpret_cast<const float4*>(merge + w * Shared::kMergeElements + i);
          sum.sum += share.y * weight;
          merged.x += values.x * weight;
          merged.y += values.y * weight;
          merged.z += values.z * weight;
          merged.w += values.w * weight;
        }
        store(row, c, sum, merged);
      }
      __syncthreads();
    }
  }

  // Columns [column, column + width) of the accumulator's first rows, dense.
  __device__ __forceinline__ void store_columns(float* to, int column, int width, int num_heads,
                                                int lane) const {
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      const int c = 8 * n + 2 * (lane % 4) - column;
      if (8 * n < column || 8 * n >= column + width) continue;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = lane / 4 + 8 * r;
        if (row < num_heads)
          *reinterpret_cast<float2*>(to + row * width + c) = {out[n][2 * r], out[n][2 * r + 1]};
      }
    }
  }
};

}  // namespace quire::cuda
