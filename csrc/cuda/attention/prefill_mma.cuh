// Prefill with mma.sync: sm_80 and later.
//
// Eight warps of 16 query rows each; keys and values come in tiles through two stages of shared memory, from
// the last tile, where causality cuts, to the first. Scores, weights and output stay in registers.
#pragma once

#include "attention/prefill.cuh"
#include "common/launch.h"

namespace quire::cuda {

template <int D>
struct PrefillShared {
  static constexpr int kWarps = kMmaPrefillRows / 16, kThreads = 32 * kWarps;
  static constexpr int kKeys = D <= 128 ? 64 : 32;
  static constexpr int kGroups = kKeys / kGroupTokens;
  static constexpr int kTileBytes = kGroups * Group<D>::kBytes;  // of keys, or of values
  static constexpr int kQueryBytes = kWarps * Group<D>::kBytes;  // a warp's rows lie like a group
  static constexpr int kBytes = kQueryBytes + 2 * 2 * kTileBytes;
  static constexpr bool kQueryInRegisters = D <= 96;
};

template <typename T, int D, bool kOptions>
__global__ void __launch_bounds__(PrefillShared<D>::kThreads)
    prefill_mma_kernel(const __grid_constant__ AttentionParams p) {
  using Shared = PrefillShared<D>;
  constexpr int kKeys = Shared::kKeys;
  extern __shared__ __align__(128) std::byte shared[];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const uint32_t queries = shared_address(shared) + static_cast<uint32_t>(warp * Group<D>::kBytes);
  const uint32_t tiles = shared_address(shared) + Shared::kQueryBytes;
  const float scale = kOptions ? p.scale : p.scale * kLog2E;

  PrefillItems<1> items(p);
  PrefillItem item;
  while (items.next(p, item)) {
    __syncthreads();  // the last item's tiles are read
#pragma unroll 2
    for (int i = lane; i < Group<D>::kChunks; i += 32) {
      const int row = i / Group<D>::kChunksPerToken, chunk = i % Group<D>::kChunksPerToken;
      const int packed = item.first + 16 * warp + row;
      const bool valid = 16 * warp + row < item.count;
      const int token = packed / p.num_queries_per_kv,
                head = item.kv_head * p.num_queries_per_kv + packed % p.num_queries_per_kv;
      const T* from = static_cast<const T*>(p.query);
      if (valid) from += (item.query_begin + token) * p.query_stride + head * p.query_head_stride + chunk * 8;
      copy_async(queries + Group<D>::offset(row, chunk), from, valid);
    }
    const int state_index = __ldg(p.state_indices + item.row);
    const auto issue = [&](int tile, int stage) {
      const int64_t to_values = static_cast<int64_t>(p.num_kv_heads) * p.block_size * (2 * D);
#pragma unroll
      for (int g = 0; g < Shared::kGroups; ++g) {
        const int token = tile * kKeys + g * kGroupTokens;
        const std::byte* keys = p.cache;
        if (token < item.seq_len && token + kGroupTokens > item.low) {
          const int block =
              __ldg(p.block_table + state_index * p.block_table_stride + (token >> p.block_shift));
          keys += block * p.page_stride_bytes + kv_group_offset(0, item.kv_head, token & (p.block_size - 1),
                                                                p.num_kv_heads, p.block_size, 2 * D);
        }
        const uint32_t to =
            tiles + static_cast<uint32_t>(stage * 2 * Shared::kTileBytes + g * Group<D>::kBytes);
        // Keys that no query may see become zeros, in values too: they may be NaN.
        for (int i = static_cast<int>(threadIdx.x); i < Group<D>::kChunks; i += Shared::kThreads) {
          const int key = token + Group<D>::token_of(i);
          const bool valid = key >= item.low && key < item.seq_len;
          copy_async(to + i * 16, keys + i * 16, valid);
          copy_async(to + Shared::kTileBytes + i * 16, keys + (valid ? to_values : 0) + i * 16, valid);
        }
      }
      commit_copies();
    };

    const int first_tile = item.tiles_begin(kKeys);
    int tile = item.tiles_end(kKeys) - 1, stage = 0;
    issue(tile, stage);

    int position[2];
    float slope[2] = {0.0F, 0.0F}, max[2] = {kNegativeInfinity, kNegativeInfinity}, sum[2] = {0.0F, 0.0F};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int packed = 16 * warp + lane / 4 + 8 * r;
      position[r] = item.position(packed, p.num_queries_per_kv);
      if (kOptions && p.alibi_slopes != nullptr)
        slope[r] = p.alibi_slopes[item.kv_head * p.num_queries_per_kv +
                                  (item.first + packed) % p.num_queries_per_kv];
    }
    const int warp_first = item.position(16 * warp, p.num_queries_per_kv),
              warp_last = item.position(16 * warp + 15, p.num_queries_per_kv);
    uint32_t query[Shared::kQueryInRegisters ? D / 16 : 1][4];
    float out[D / 8][4] = {};

    for (bool fresh = true; tile >= first_tile; --tile, stage ^= 1) {
      wait_copies<0>();
      __syncthreads();
      if (tile > first_tile) issue(tile - 1, stage ^ 1);
      const auto load_query = [&](uint32_t (&a)[4], int k) {
        load_matrices(a, queries + Group<D>::offset(lane % 16, 2 * k + lane / 16));
      };
      if (Shared::kQueryInRegisters && fresh) {
#pragma unroll
        for (int k = 0; k < D / 16; ++k) load_query(query[Shared::kQueryInRegisters ? k : 0], k);
      }
      fresh = false;
      const int key_begin = tile * kKeys, key_last = key_begin + kKeys - 1;
      // Nothing to see for any row of this warp.
      if (16 * warp >= item.count || key_begin > warp_last ||
          (p.sliding_window > 0 && key_last <= warp_first - p.sliding_window))
        continue;
      const uint32_t keys = tiles + static_cast<uint32_t>(stage * 2 * Shared::kTileBytes);
      const uint32_t values = keys + Shared::kTileBytes;

      float scores[kKeys / 8][4] = {};
#pragma unroll
      for (int k = 0; k < D / 16; ++k) {
        uint32_t (&a)[4] = query[Shared::kQueryInRegisters ? k : 0];
        if constexpr (!Shared::kQueryInRegisters) load_query(a, k);
#pragma unroll
        for (int g = 0; g < Shared::kGroups; ++g) {
          uint32_t b[4];
          Group<D>::load_keys(b, keys + static_cast<uint32_t>(g * Group<D>::kBytes), k, lane);
          multiply_add<T>(scores[2 * g], a, b[0], b[1]);
          multiply_add<T>(scores[2 * g + 1], a, b[2], b[3]);
        }
      }
      const bool masked =
          key_last > warp_first || (p.sliding_window > 0 && key_begin <= warp_last - p.sliding_window);
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int key = key_begin + 8 * n + 2 * (lane % 4) + e % 2, query_position = position[e / 2];
          scores[n][e] =
              scaled_score<kOptions>(scores[n][e], scale, p.soft_cap, slope[e / 2], key - query_position);
          if (masked &&
              (key > query_position || (p.sliding_window > 0 && key <= query_position - p.sliding_window)))
            scores[n][e] = kNegativeInfinity;
        }
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float top = max[r];
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) top = fmaxf(top, fmaxf(scores[n][2 * r], scores[n][2 * r + 1]));
        top = quad_max(top);
        const float base = top == kNegativeInfinity ? 0.0F : top;  // no key yet
        const float rescale = fast_exp2(max[r] - base);
        max[r] = top;
        sum[r] *= rescale;
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
          out[n][2 * r] *= rescale;
          out[n][2 * r + 1] *= rescale;
        }
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
          for (int e = 2 * r; e < 2 * r + 2; ++e) {
            scores[n][e] = fast_exp2(scores[n][e] - base);
            sum[r] += scores[n][e];
          }
        }
      }
#pragma unroll
      for (int g = 0; g < Shared::kGroups; ++g) {
        const float (&low)[4] = scores[2 * g];
        const float (&high)[4] = scores[2 * g + 1];
        const uint32_t weights[4] = {pack<T>(low[0], low[1]), pack<T>(low[2], low[3]),
                                     pack<T>(high[0], high[1]), pack<T>(high[2], high[3])};
#pragma unroll
        for (int n = 0; n < D / 16; ++n) {
          uint32_t b[4];
          Group<D>::load_values(b, values + static_cast<uint32_t>(g * Group<D>::kBytes), n, lane);
          multiply_add<T>(out[2 * n], weights, b[0], b[1]);
          multiply_add<T>(out[2 * n + 1], weights, b[2], b[3]);
        }
      }
    }

#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = 16 * warp + lane / 4 + 8 * r;
      float total = quad_sum(sum[r]);
      if (row >= item.count) continue;
      const int packed = item.first + row,
                head = item.kv_head * p.num_queries_per_kv + packed % p.num_queries_per_kv;
      float weight = 1.0F;
      if (p.sinks != nullptr) {
        const float sink = p.sinks[head] * kLog2E, top = fmaxf(sink, max[r]);
        weight = fast_exp2(max[r] - top);
        total = total * weight + fast_exp2(sink - top);
      }
      weight /= total;
      T* to = static_cast<T*>(p.out) + (item.query_begin + packed / p.num_queries_per_kv) * p.out_stride +
              head * p.out_head_stride + 2 * (lane % 4);
#pragma unroll
      for (int n = 0; n < D / 8; ++n)
        *reinterpret_cast<uint32_t*>(to + 8 * n) =
            pack<T>(out[n][2 * r] * weight, out[n][2 * r + 1] * weight);
    }
  }
}

template <typename T, int D, bool kOptions>
void launch_prefill_mma_kernel(const LaunchContext& ctx, const AttentionParams& p) {
  constexpr auto kernel = prefill_mma_kernel<T, D, kOptions>;
  constexpr int bytes = PrefillShared<D>::kBytes;
  static std::atomic<uint64_t> prepared{0};
  const cudaError_t error = allow_shared_bytes(prepared, reinterpret_cast<const void*>(kernel), bytes);
  if (error != cudaSuccess) return note_error(ctx, "prefill_mma_attention", "", cudaGetErrorString(error));
  const unsigned grid = prefill_grid(p, device_limits().num_sms);
  kernel<<<grid, PrefillShared<D>::kThreads, bytes, stream_of(ctx)>>>(p);
  check_launch(ctx, "prefill_mma_attention", "[%d tokens, %d heads, %d KV heads, %d]", p.num_tokens,
               p.num_heads, p.num_kv_heads, D);
}

template <typename T>
void launch_prefill_mma(const LaunchContext& ctx, const AttentionParams& p) {
  const auto with_size = [&]<int D>() {
    if (p.soft_cap > 0.0F || p.alibi_slopes != nullptr) {
      launch_prefill_mma_kernel<T, D, true>(ctx, p);
    } else {
      launch_prefill_mma_kernel<T, D, false>(ctx, p);
    }
  };
  with_head_size(p.head_size, with_size);
}

}  // namespace quire::cuda
