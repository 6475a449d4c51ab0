// Decode: one query token a row, split over its keys.
//
// The plan lays the step's (row, unit, tile of 64 keys) in one line and gives each block an equal stretch,
// however uneven the rows are. A unit is up to 16 query heads of one KV head: the 16 rows of the tensor
// cores' tile. Of a tile each of the four warps takes one group of 16 keys, with a pipeline of its own: the
// warps meet only where a (row, unit) ends. A block that had all of it writes the result; otherwise each
// block leaves its share in the workspace, and the one that comes last adds them up, in the order of the
// blocks: results do not depend on time.
#pragma once

#include "attention/params.h"
#include "attention/tensor_core.cuh"
#include "common/launch.h"

namespace quire::cuda {

// Stages of a warp's pipeline, and how many remain where a block may have 99 KiB of shared memory (compute
// capability 8.6, 8.9 and 12.x).
template <int D>
constexpr int kDecodeStages = D <= 64    ? 6
                              : D <= 80  ? 4
                              : D <= 128 ? 3
                                         : 2;
template <int D>
constexpr int kFewDecodeStages = D <= 64   ? 5
                                 : D <= 96 ? 3
                                           : 2;

template <int D, int kStageCount = kDecodeStages<D>>
struct DecodeShared {
  static constexpr int kWarps = 4, kThreads = 32 * kWarps;
  static constexpr int kStages = kStageCount;
  static constexpr int kBlocksPerSm = D <= 128 ? 2 : 1;
  static constexpr int kStageBytes = 2 * Group<D>::kBytes;  // keys, then values
  static constexpr int kPipelineBytes = kWarps * kStages * kStageBytes;
  static constexpr int kMergeElements = 1024;  // of one warp's output at a time
  static constexpr int kMaxSumOffset = kPipelineBytes + kWarps * kMergeElements * 4;
  // Queries that would not fit the registers: operand A of each 16 elements of D, 16 bytes a lane.
  static constexpr bool kSharedQuery = D > 128;
  static constexpr int kQueryOffset = kMaxSumOffset + kWarps * kDecodeHeads * 8;
  static constexpr int kBytes = kQueryOffset + (kSharedQuery ? kDecodeHeads * D * 2 : 0);
};

// Walks a block's stretch of tiles; the same in all its threads.
struct DecodeCursor {
  int row, state_index, unit, tile, remaining;
  int seq_len, low, first_tile, num_tiles;  // of the row; keys [low, seq_len) count

  __device__ __forceinline__ void set_row(const AttentionParams& p, int length) {
    const TileRange tiles = last_token_tiles(length, p.sliding_window, kDecodeTokens);
    seq_len = length;
    low = p.sliding_window > 0 ? max(0, length - p.sliding_window) : 0;
    first_tile = tiles.begin;
    num_tiles = tiles.count;
  }
  __device__ __forceinline__ bool ends_unit() const { return tile + 1 == num_tiles; }
  __device__ __forceinline__ void advance(const AttentionParams& p, int units) {
    --remaining;
    if (++tile < num_tiles) return;
    tile = 0;
    if (++unit < units) return;
    unit = 0;
    if (remaining == 0) return;
    do {
      ++row;
      set_row(p, __ldg(p.seq_lens + row));
    } while (num_tiles == 0);
    state_index = __ldg(p.state_indices + row);
  }
  // The first key of a warp's group, and whether any of the group counts.
  __device__ __forceinline__ int group_token(int warp) const {
    return (first_tile + tile) * kDecodeTokens + warp * kGroupTokens;
  }
  __device__ __forceinline__ bool group_counts(int warp) const {
    const int token = group_token(warp);
    return token < seq_len && token + kGroupTokens > low;
  }
};

// Softmax sums in the making: sum of 2^(score - max), and the output times that.
struct MaxSum {
  float max = kNegativeInfinity, sum = 0.0F;
};

// The factor that brings a part's sums to the common maximum; 0 for a part without keys.
__device__ __forceinline__ float part_weight(float max, float common_max) {
  return max == kNegativeInfinity ? 0.0F : fast_exp2(max - common_max);
}

// 1 / sum, with the sink's share, and 4 elements of the result.
template <typename T>
__device__ __forceinline__ void write_output(const AttentionParams& p, int token, int head, int column,
                                             MaxSum total, float4 out) {
  if (p.sinks != nullptr) {
    const float sink = p.sinks[head] * kLog2E, top = fmaxf(sink, total.max);
    const float weight = part_weight(total.max, top);
    total.sum = total.sum * weight + fast_exp2(sink - top);
    out = {out.x * weight, out.y * weight, out.z * weight, out.w * weight};
  }
  const float inverse = 1.0F / total.sum;
  T* to = static_cast<T*>(p.out) + token * p.out_stride + head * p.out_head_stride + column;
  *reinterpret_cast<uint2*>(to) = {pack<T>(out.x * inverse, out.y * inverse),
                                   pack<T>(out.z * inverse, out.w * inverse)};
}

// Adds up the shares of one (row, unit) that blocks [first, last] left, where it begins at tile `begin` of
// the line.
template <typename T, int D>
__device__ void combine_parts(const AttentionParams& p, int begin, int chunk, int first, int last,
                              int num_heads, int token, int head) {
  constexpr int kBatch = D <= 128 ? 16 : 8;  // loads in flight
  const int parts = last - first + 1;
  const int first_slot = 2 * first + (begin == first * chunk ? 0 : 1);
  for (int i = static_cast<int>(threadIdx.x) * 4; i < num_heads * D; i += DecodeShared<D>::kThreads * 4) {
    const int row = i / D, column = i % D;
    MaxSum total;
    float4 out = {0.0F, 0.0F, 0.0F, 0.0F};
    for (int base = 0; base < parts; base += kBatch) {
      float2 max_sum[kBatch];
      float4 values[kBatch];
      float top = total.max;
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int part = base + j;
        max_sum[j] = {kNegativeInfinity, 0.0F};
        values[j] = {0.0F, 0.0F, 0.0F, 0.0F};
        if (part < parts) {
          const int64_t slot = (part == 0 ? first_slot : 2 * (first + part)) * kDecodeHeads + row;
          max_sum[j] = __ldcg(reinterpret_cast<const float2*>(p.partial_max_sum) + slot);
          values[j] = __ldcg(reinterpret_cast<const float4*>(p.partial_out + slot * D + column));
        }
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) top = fmaxf(top, max_sum[j].x);
      const float old = part_weight(total.max, top);
      total = {top, total.sum * old};
      out = {out.x * old, out.y * old, out.z * old, out.w * old};
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const float weight = part_weight(max_sum[j].x, top);
        total.sum += max_sum[j].y * weight;
        out.x += values[j].x * weight;
        out.y += values[j].y * weight;
        out.z += values[j].z * weight;
        out.w += values[j].w * weight;
      }
    }
    write_output<T>(p, token, head + row, column, total, out);
  }
}

template <typename T, int D, bool kOptions, int kStageCount>
__global__ void __launch_bounds__(DecodeShared<D>::kThreads, DecodeShared<D>::kBlocksPerSm)
    decode_attention_kernel(const __grid_constant__ AttentionParams p) {
  using Shared = DecodeShared<D, kStageCount>;
  constexpr int kStages = Shared::kStages;
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ bool comes_last;
  float* merge = reinterpret_cast<float*>(shared + Shared::kPipelineBytes);
  float2* max_sums = reinterpret_cast<float2*>(shared + Shared::kMaxSumOffset);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int block = static_cast<int>(blockIdx.x);

  const DecodeStart* start = p.plan->starts() + block;
  const int4 begin = *reinterpret_cast<const int4*>(start);
  const int chunk = p.plan->decode_chunk;
  DecodeCursor loads{.row = begin.x, .state_index = start->state_index, .unit = begin.y, .tile = begin.z};
  loads.remaining = min(chunk, p.plan->decode_tiles - block * chunk);
  if (loads.remaining <= 0) return;
  loads.set_row(p, begin.w);
  DecodeCursor work = loads;

  const int units_per_head = (p.num_queries_per_kv + kDecodeHeads - 1) / kDecodeHeads;
  const int units = p.num_kv_heads * units_per_head;
  const uint32_t pipeline =
      shared_address(shared) + static_cast<uint32_t>(warp * kStages * Shared::kStageBytes);

  // The block id of the group to load next, asked for one tile early.
  int block_id = 0;
  const auto find_block = [&] {
    if (loads.remaining > 0 && loads.group_counts(warp))
      block_id = __ldg(p.block_table + loads.state_index * p.block_table_stride +
                       (loads.group_token(warp) >> p.block_shift));
  };
  const auto issue = [&](int stage) {
    if (loads.remaining > 0) {
      if (loads.group_counts(warp)) {
        const int token = loads.group_token(warp);
        const std::byte* keys = p.cache + block_id * p.page_stride_bytes +
                                kv_group_offset(0, loads.unit / units_per_head, token & (p.block_size - 1),
                                                p.num_kv_heads, p.block_size, 2 * D);
        const int64_t to_values = static_cast<int64_t>(p.num_kv_heads) * p.block_size * (2 * D);
        const uint32_t to = pipeline + static_cast<uint32_t>(stage * Shared::kStageBytes);
        // Keys outside of [low, seq_len) may be NaN, in values too, and 0 * NaN is NaN: they become zeros.
#pragma unroll
        for (int j = 0; j < Group<D>::kChunks / 32; ++j) {
          const int i = 32 * j + lane;
          const int key = token + Group<D>::token_of(i);
          const bool valid = key >= loads.low && key < loads.seq_len;
          copy_async(to + Group<D>::stored_offset(i), keys + i * 16, valid);
          copy_async(to + Group<D>::kBytes + Group<D>::stored_offset(i), keys + to_values + i * 16, valid);
        }
      }
      loads.advance(p, units);
      find_block();
    }
    commit_copies();
  };
  find_block();
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) issue(stage);

  uint4* shared_query = reinterpret_cast<uint4*>(shared + Shared::kQueryOffset) + lane;
  uint32_t query[Shared::kSharedQuery ? 1 : D / 16][4];
  float out[D / 8][4], slope[2] = {0.0F, 0.0F};
  MaxSum total[2];  // of rows lane / 4 and lane / 4 + 8; the sums of this lane's columns only
  const float scale = kOptions ? p.scale : p.scale * kLog2E;
  int done = 0, segment_begin = 0;  // tiles before this segment; its first tile in the (row, unit)
  int stage = 0, token = 0, head = 0, num_heads = 0;

  for (bool fresh = true; work.remaining > 0;) {
    issue(stage == 0 ? kStages - 1 : stage - 1);
    if (fresh) {  // a segment begins
      const int kv_head = work.unit / units_per_head;
      const int first = (work.unit - kv_head * units_per_head) * kDecodeHeads;
      num_heads = min(kDecodeHeads, p.num_queries_per_kv - first);
      head = kv_head * p.num_queries_per_kv + first;
      token = __ldg(p.query_start_loc + work.row);
      segment_begin = work.tile;
      const auto load_query = [&](int k, uint32_t (&a)[4]) {
        const T* from = static_cast<const T*>(p.query) + token * p.query_stride + 16 * k + 2 * (lane % 4);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = lane / 4 + 8 * (i % 2);
          a[i] =
              row < num_heads
                  ? *reinterpret_cast<const uint32_t*>(from + (head + row) * p.query_head_stride + i / 2 * 8)
                  : 0U;
        }
      };
      if constexpr (Shared::kSharedQuery) {
#pragma unroll 1
        for (int k = warp; k < D / 16; k += Shared::kWarps) {
          load_query(k, query[0]);
          shared_query[32 * k] = {query[0][0], query[0][1], query[0][2], query[0][3]};
        }
        __syncthreads();
      } else {
#pragma unroll
        for (int k = 0; k < D / 16; ++k) load_query(k, query[k]);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = lane / 4 + 8 * r;
        total[r] = MaxSum{};
        if (kOptions && p.alibi_slopes != nullptr && row < num_heads) slope[r] = p.alibi_slopes[head + row];
      }
#pragma unroll
      for (int n = 0; n < D / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) out[n][e] = 0.0F;
      fresh = false;
    }
    wait_copies<kStages - 1>();
    __syncwarp();

    if (work.group_counts(warp)) {
      const uint32_t keys = pipeline + static_cast<uint32_t>(stage * Shared::kStageBytes);
      const uint32_t values = keys + Group<D>::kBytes;
      float scores[2][4] = {};
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
      const uint32_t weights[4] = {pack<T>(scores[0][0], scores[0][1]), pack<T>(scores[0][2], scores[0][3]),
                                   pack<T>(scores[1][0], scores[1][1]), pack<T>(scores[1][2], scores[1][3])};
#pragma unroll
      for (int n = 0; n < D / 16; ++n) {
        uint32_t b[4];
        Group<D>::load_values(b, values, n, lane);
        multiply_add<T>(out[2 * n], weights, b[0], b[1]);
        multiply_add<T>(out[2 * n + 1], weights, b[2], b[3]);
      }
    }
    __syncwarp();  // the stage may be overwritten
    stage = stage + 1 == kStages ? 0 : stage + 1;

    if (!work.ends_unit() && work.remaining > 1) {
      work.advance(p, units);
      continue;
    }

    // The segment ends: the warps' shares become one.
    const bool complete = segment_begin == 0 && work.ends_unit();
    const int line_begin = block * chunk + done - segment_begin;  // of the (row, unit)
    const int64_t slot = (2 * block + (done > 0 ? 1 : 0)) * kDecodeHeads;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = quad_sum(total[r].sum);
      if (lane % 4 == 0) max_sums[warp * kDecodeHeads + lane / 4 + 8 * r] = {total[r].max, sum};
    }
    const int max_width = Shared::kMergeElements / (num_heads <= 4 ? 4 : num_heads <= 8 ? 8 : 16);
    for (int column = 0; column < D; column += max_width) {
      const int width = min(max_width, D - column);
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        const int c = 8 * n + 2 * (lane % 4) - column;
        if (8 * n < column || 8 * n >= column + width) continue;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int row = lane / 4 + 8 * r;
          if (row < num_heads)
            *reinterpret_cast<float2*>(merge + warp * Shared::kMergeElements + row * width + c) = {
                out[n][2 * r], out[n][2 * r + 1]};
        }
      }
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x) * 4; i < num_heads * width; i += Shared::kThreads * 4) {
        const int row = i / width, c = column + i % width;
        MaxSum sum;
#pragma unroll
        for (int w = 0; w < Shared::kWarps; ++w) sum.max = fmaxf(sum.max, max_sums[w * kDecodeHeads + row].x);
        float4 merged = {0.0F, 0.0F, 0.0F, 0.0F};
#pragma unroll
        for (int w = 0; w < Shared::kWarps; ++w) {
          const float2 part = max_sums[w * kDecodeHeads + row];
          const float weight = part_weight(part.x, sum.max);
          const float4 values = *reinterpret_cast<const float4*>(merge + w * Shared::kMergeElements + i);
          sum.sum += part.y * weight;
          merged.x += values.x * weight;
          merged.y += values.y * weight;
          merged.z += values.z * weight;
          merged.w += values.w * weight;
        }
        if (complete) {
          write_output<T>(p, token, head + row, c, sum, merged);
        } else {
          __stcg(reinterpret_cast<float4*>(p.partial_out + (slot + row) * D + c), merged);
          if (c == 0)
            __stcg(reinterpret_cast<float2*>(p.partial_max_sum) + slot + row, float2{sum.max, sum.sum});
        }
      }
      __syncthreads();
    }
    if (!complete) {
      const int first_block = line_begin / chunk, last_block = (line_begin + work.num_tiles - 1) / chunk;
      int32_t* counter = p.plan->counters(p.decode_blocks) + first_block;
      __threadfence();
      __syncthreads();
      if (threadIdx.x == 0) {
        comes_last = atomicAdd(counter, 1) == last_block - first_block;
        if (comes_last) *counter = 0;  // for the next layer
      }
      __syncthreads();
      if (comes_last) {
        __threadfence();
        combine_parts<T, D>(p, line_begin, chunk, first_block, last_block, num_heads, token, head);
      }
    }
    done += work.tile - segment_begin + 1;
    fresh = true;
    work.advance(p, units);
  }
}

template <typename T, int D, bool kOptions, int kStageCount>
void launch_decode_kernel(const LaunchContext& ctx, const AttentionParams& p) {
  constexpr auto kernel = decode_attention_kernel<T, D, kOptions, kStageCount>;
  constexpr int bytes = DecodeShared<D, kStageCount>::kBytes;
  static std::atomic<uint64_t> prepared{0};
  const cudaError_t error = allow_shared_bytes(prepared, reinterpret_cast<const void*>(kernel), bytes);
  if (error != cudaSuccess) return note_error(ctx, "decode_attention", "", cudaGetErrorString(error));
  kernel<<<static_cast<unsigned>(p.decode_blocks), DecodeShared<D>::kThreads, bytes, stream_of(ctx)>>>(p);
  check_launch(ctx, "decode_attention", "[%d rows, %d heads, %d KV heads, %d]", p.num_decode_rows,
               p.num_heads, p.num_kv_heads, D);
}

template <typename T>
void launch_decode(const LaunchContext& ctx, const AttentionParams& p) {
  const auto with_stages = [&]<int D, int kStageCount>() {
    if (p.soft_cap > 0.0F || p.alibi_slopes != nullptr) {
      launch_decode_kernel<T, D, true, kStageCount>(ctx, p);
    } else {
      launch_decode_kernel<T, D, false, kStageCount>(ctx, p);
    }
  };
  const auto with_size = [&]<int D>() {
    if constexpr (kFewDecodeStages<D> != kDecodeStages<D>) {
      if (!shared_memory_fits(DecodeShared<D>::kBytes, device_limits().max_shared_bytes_per_block))
        return with_stages.template operator()<D, kFewDecodeStages<D>>();
    }
    with_stages.template operator()<D, kDecodeStages<D>>();
  };
  with_head_size(p.head_size, with_size);
}

}  // namespace quire::cuda
