// Prefill on Hopper: warp-specialised, with asynchronous tensor cores.
//
// Warpgroup 0 fetches. Its warp 0 sends for keys and values, one bulk copy per group and 64 columns: pages
// hold groups in the very order that wgmma takes from shared memory. Its other warps gather the next item's
// queries. Warpgroups 1 and 2 have 64 query rows each. While one of them works out its softmax the other has
// the tensor cores: they take turns at a pair of named barriers. Within a warpgroup the scores of a tile and
// the output of the tile before are computed together, so that the output's wgmma run beside the softmax too.
#include "attention/prefill.cuh"
#include "common/hopper.cuh"
#include "common/launch.h"

namespace quire::cuda {
namespace {

template <int D>
struct WgmmaShared {
  static constexpr int kThreads = 384, kFetchQueryThreads = 96, kConsumerWarps = 8;
  static constexpr int kKeys = 128;                // of a tile
  static constexpr int kPanels = D / 64;           // a tile lies as panels of 64 columns
  static constexpr int kPanelBytes = kKeys * 128;  // keys, values and queries alike
  static constexpr int kTileBytes = kPanels * kPanelBytes;
  static constexpr int kStages = D == 64 ? 4 : 2;
  static constexpr int kQueries = 0;  // two items'
  static constexpr int kKeyTiles = kQueries + 2 * kTileBytes;
  static constexpr int kValueTiles = kKeyTiles + kStages * kTileBytes;
  static constexpr int kItems = kValueTiles + kStages * kTileBytes;
  static constexpr int kBarriers = kItems + 2 * 64;
  static constexpr int kAlignment = 1024;  // of swizzle atoms; not more is promised than 16
  static constexpr int kBytes = kBarriers + (4 + 4 * kStages) * 8 + kAlignment;
  static_assert(kThreads == 32 + kFetchQueryThreads + 32 * kConsumerWarps && kPrefillRows == kKeys &&
                sizeof(PrefillItem) <= 64);
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The addresses of the barriers: a ring each for queries, keys and values, "full" and "empty".
template <int D>
struct Barriers {
  uint32_t base;
  __device__ uint32_t query_full(int i) const { return base + static_cast<uint32_t>(i) * 8; }
  __device__ uint32_t query_empty(int i) const { return query_full(2 + i); }
  __device__ uint32_t key_full(int i) const { return query_full(4 + i); }
  __device__ uint32_t key_empty(int i) const { return query_full(4 + WgmmaShared<D>::kStages + i); }
  __device__ uint32_t value_full(int i) const { return query_full(4 + 2 * WgmmaShared<D>::kStages + i); }
  __device__ uint32_t value_empty(int i) const { return query_full(4 + 3 * WgmmaShared<D>::kStages + i); }
};

template <int D>
__device__ __forceinline__ void fetch_keys_and_values(const AttentionParams& p, uint32_t shared,
                                                      Barriers<D> barriers) {
  using Shared = WgmmaShared<D>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int group = lane / Shared::kPanels, panel = lane % Shared::kPanels;  // this lane's part of a tile
  const int64_t to_values = static_cast<int64_t>(p.num_kv_heads) * p.block_size * (2 * D);
  PrefillItems items(p);
  PrefillItem item, next;
  bool more = items.next(p, next);
  Ring<Shared::kStages> ring;
  while (more) {
    item = next;
    more = items.next(p, next);  // looked up while the copies of this item wait for room
    for (int tile = item.tiles_end(Shared::kKeys) - 1; tile >= item.tiles_begin(Shared::kKeys); --tile) {
      const int token = tile * Shared::kKeys + group * kGroupTokens;
      const bool wanted =
          group < Shared::kKeys / kGroupTokens && token < item.seq_len && token + kGroupTokens > item.low;
      const std::byte* from = p.cache;
      if (wanted) {
        // Asked for with every tile: it is in the cache, and these few registers have no room for it.
        const int64_t blocks = __ldg(p.state_indices + item.row) * p.block_table_stride;
        const int block = __ldg(p.block_table + blocks + (token >> p.block_shift));
        from += block * p.page_stride_bytes + kv_group_offset(0, item.kv_head, token & (p.block_size - 1),
                                                              p.num_kv_heads, p.block_size, 2 * D);
      }
      constexpr uint32_t kCopyBytes = kGroupTokens * 128;
      from += panel * kCopyBytes;
      const uint32_t bytes = kCopyBytes * static_cast<uint32_t>(__popc(__ballot_sync(0xFFFFFFFFU, wanted)));
      const auto fetch = [&](uint32_t full, uint32_t empty, int tiles, const std::byte* source) {
        wait_barrier(empty, ring.parity ^ 1);
        if (lane == 0) arrive_expecting(full, bytes);
        __syncwarp();
        const uint32_t to =
            shared +
            static_cast<uint32_t>(tiles + ring.stage * Shared::kTileBytes + panel * Shared::kPanelBytes) +
            static_cast<uint32_t>(group) * kCopyBytes;
        if (wanted) copy_bulk(to, source, kCopyBytes, full);
      };
      fetch(barriers.key_full(ring.stage), barriers.key_empty(ring.stage), Shared::kKeyTiles, from);
      fetch(barriers.value_full(ring.stage), barriers.value_empty(ring.stage), Shared::kValueTiles,
            from + to_values);
      ring.advance();
    }
  }
}

template <typename T, int D>
__device__ __forceinline__ void fetch_queries(const AttentionParams& p, std::byte* shared,
                                              Barriers<D> barriers) {
  using Shared = WgmmaShared<D>;
  const int thread = static_cast<int>(threadIdx.x) - 32;
  PrefillItems items(p);
  Ring<2> ring;
  for (bool more = true; more; ring.advance()) {
    PrefillItem item{};
    more = items.next(p, item);
    wait_barrier(barriers.query_empty(ring.stage), ring.parity ^ 1);
    // A count of 0 tells the consumers that this is the end.
    if (thread == 0) reinterpret_cast<PrefillItem*>(shared + Shared::kItems + ring.stage * 64)[0] = item;
    if (more) {
      const uint32_t to =
          shared_address(shared) + static_cast<uint32_t>(Shared::kQueries + ring.stage * Shared::kTileBytes);
      for (int i = thread; i < kPrefillRows * D / 8; i += Shared::kFetchQueryThreads) {
        const int row = i / (D / 8), chunk = i % (D / 8), packed = item.first + row;
        const bool valid = row < item.count;
        const T* from = static_cast<const T*>(p.query);
        if (valid)
          from +=
              (item.query_begin + packed / p.num_queries_per_kv) * p.query_stride +
              (item.kv_head * p.num_queries_per_kv + packed % p.num_queries_per_kv) * p.query_head_stride +
              chunk * 8;
        copy_async(to + static_cast<uint32_t>(chunk / 8 * Shared::kPanelBytes + row * 128 +
                                              (((chunk % 8) ^ (row % 8)) * 16)),
                   from, valid);
      }
      commit_copies();
      wait_copies<0>();
      fence_for_async();
    }
    arrive(barriers.query_full(ring.stage));
  }
}

// One warpgroup's 64 query rows of every item.
template <typename T, int D, bool kOptions>
struct Consumer {
  using Shared = WgmmaShared<D>;
  // Named barriers; 0 is __syncthreads.
  static constexpr int kTurn = 1, kZeroed = 3;

  const AttentionParams& p;
  std::byte* shared;
  Barriers<D> barriers;
  int warpgroup, thread;  // 0 or 1; in it
  Ring<2> queries;
  Ring<Shared::kStages> keys, values;

  int position[2];
  float slope[2], max[2], sum[2];
  float scale;  // of scores, to units of log2
  float scores[64], out[D / 2];
  uint32_t weights[8][4];

  __device__ __forceinline__ uint32_t address(int offset) const {
    return shared_address(shared) + static_cast<uint32_t>(offset);
  }

  __device__ __forceinline__ void release(uint32_t empty) {
    __syncwarp();
    if (thread % 32 == 0) arrive(empty);
  }

  // Enqueues scores = Q K^T.
  __device__ __forceinline__ void multiply_keys() {
    const uint64_t a = matrix_descriptor(
        address(Shared::kQueries + queries.stage * Shared::kTileBytes + warpgroup * 64 * 128), 16, 1024);
    const uint64_t b =
        matrix_descriptor(address(Shared::kKeyTiles + keys.stage * Shared::kTileBytes), 16, 1024);
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      const uint32_t offset = static_cast<uint32_t>(k / 4 * Shared::kPanelBytes + k % 4 * 32);
      wgmma_rows<T>(scores, advanced(a, offset), advanced(b, offset), k > 0 ? 1 : 0);
    }
    wgmma_commit();
  }

  // Enqueues out += P V.
  __device__ __forceinline__ void multiply_values() {
    const uint64_t b = matrix_descriptor(address(Shared::kValueTiles + values.stage * Shared::kTileBytes),
                                         Shared::kPanelBytes, 1024);
#pragma unroll
    for (int k = 0; k < Shared::kKeys / 16; ++k)
      wgmma_values<T>(out, weights[k], advanced(b, static_cast<uint32_t>(k * 16 * 128)));
    wgmma_commit();
  }

  // Scores become weights, not yet rounded; `rescale` is what the output so far must be multiplied by.
  __device__ __forceinline__ void softmax(const PrefillItem& item, int tile, float (&rescale)[2]) {
    const int first_key = tile * Shared::kKeys + 2 * (thread % 4), last_key = (tile + 1) * Shared::kKeys - 1;
    if constexpr (kOptions) {
#pragma unroll
      for (int i = 0; i < 64; ++i) {
        const int key = first_key + i / 4 * 8 + i % 2, r = i / 2 % 2;
        scores[i] = scaled_score<true>(scores[i], p.scale, p.soft_cap, slope[r], key - position[r]);
      }
    }
    if (last_key > item.first_position ||
        (p.sliding_window > 0 && tile * Shared::kKeys <= item.last_position - p.sliding_window)) {
#pragma unroll
      for (int i = 0; i < 64; ++i) {
        const int key = first_key + i / 4 * 8 + i % 2, at = position[i / 2 % 2];
        if (key > at || (p.sliding_window > 0 && key <= at - p.sliding_window)) scores[i] = kNegativeInfinity;
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = max[r];
#pragma unroll
      for (int i = 2 * r; i < 64; i += 4) top = fmaxf(top, fmaxf(scores[i], scores[i + 1]));
      top = quad_max(top);
      const float base = top == kNegativeInfinity ? 0.0F : top * scale;  // no key yet
      rescale[r] = fast_exp2(max[r] * scale - base);
      max[r] = top;
      float part = 0.0F;
#pragma unroll
      for (int i = 2 * r; i < 64; i += 4) {
        scores[i] = fast_exp2(scores[i] * scale - base);
        scores[i + 1] = fast_exp2(scores[i + 1] * scale - base);
        part += scores[i] + scores[i + 1];
      }
      sum[r] = sum[r] * rescale[r] + part;
    }
  }

  // The accumulator's layout is operand A's: 16 keys are four registers.
  __device__ __forceinline__ void round_weights() {
#pragma unroll
    for (int k = 0; k < Shared::kKeys / 16; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) weights[k][i] = pack<T>(scores[8 * k + 2 * i], scores[8 * k + 2 * i + 1]);
  }

  // Values of keys that no query may see may be NaN, or left from another tile, and 0 * NaN is NaN. Both
  // warpgroups clear them together.
  __device__ __forceinline__ void clear_unseen_values(const PrefillItem& item, int tile) {
    if (tile * Shared::kKeys >= item.low && (tile + 1) * Shared::kKeys <= item.seq_len) return;
    wait_barrier(barriers.value_full(values.stage), values.parity);
    std::byte* base = shared + Shared::kValueTiles + values.stage * Shared::kTileBytes;
    for (int i = warpgroup * 128 + thread; i < Shared::kTileBytes / 16; i += 256) {
      const int key = tile * Shared::kKeys + i % (Shared::kPanelBytes / 16) / 8;
      if (key < item.low || key >= item.seq_len) reinterpret_cast<uint4*>(base)[i] = {0U, 0U, 0U, 0U};
    }
    fence_for_async();
    sync_256(kZeroed);
  }

  __device__ __forceinline__ void write(const PrefillItem& item) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = warpgroup * 64 + thread / 32 * 16 + thread % 32 / 4 + 8 * r;
      float total = quad_sum(sum[r]);
      if (row >= item.count) continue;
      const int packed = item.first + row,
                head = item.kv_head * p.num_queries_per_kv + packed % p.num_queries_per_kv;
      float weight = 1.0F;
      if (p.sinks != nullptr) {
        const float sink = p.sinks[head] * kLog2E, highest = max[r] * scale, top = fmaxf(sink, highest);
        weight = fast_exp2(highest - top);
        total = total * weight + fast_exp2(sink - top);
      }
      weight /= total;
      T* to = static_cast<T*>(p.out) + (item.query_begin + packed / p.num_queries_per_kv) * p.out_stride +
              head * p.out_head_stride + 2 * (thread % 4);
#pragma unroll
      for (int n = 0; n < D / 8; ++n)
        *reinterpret_cast<uint32_t*>(to + 8 * n) =
            pack<T>(out[4 * n + 2 * r] * weight, out[4 * n + 2 * r + 1] * weight);
    }
  }

  __device__ __forceinline__ void attend(const PrefillItem& item) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = warpgroup * 64 + thread / 32 * 16 + thread % 32 / 4 + 8 * r;
      position[r] = item.position(row, p.num_queries_per_kv);
      max[r] = kNegativeInfinity;
      sum[r] = 0.0F;
      slope[r] = 0.0F;
      if (kOptions && p.alibi_slopes != nullptr)
        slope[r] =
            p.alibi_slopes[item.kv_head * p.num_queries_per_kv + (item.first + row) % p.num_queries_per_kv];
    }
#pragma unroll
    for (float& x : out) x = 0.0F;

    const int first_tile = item.tiles_begin(Shared::kKeys);
    int tile = item.tiles_end(Shared::kKeys) - 1;
    const uint32_t query_empty = barriers.query_empty(queries.stage);
    float rescale[2];

    wait_barrier(barriers.key_full(keys.stage), keys.parity);
    sync_256(kTurn + warpgroup);
    hold(scores);
    wgmma_fence();
    multiply_keys();
    arrive_256(kTurn + (warpgroup ^ 1));
    wgmma_wait<0>();
    hold(scores);
    release(barriers.key_empty(keys.stage));
    keys.advance();
    if (tile == first_tile) release(query_empty);
    softmax(item, tile, rescale);
    round_weights();
    clear_unseen_values(item, tile);

    for (--tile; tile >= first_tile; --tile) {
      wait_barrier(barriers.key_full(keys.stage), keys.parity);
      sync_256(kTurn + warpgroup);
      hold(scores);
      hold(out);
      wgmma_fence();
      multiply_keys();
      wait_barrier(barriers.value_full(values.stage), values.parity);
      wgmma_fence();
      multiply_values();
      arrive_256(kTurn + (warpgroup ^ 1));
      wgmma_wait<1>();
      hold(scores);
      release(barriers.key_empty(keys.stage));
      keys.advance();
      if (tile == first_tile) release(query_empty);
      softmax(item, tile, rescale);
      wgmma_wait<0>();
      hold(out);
      release(barriers.value_empty(values.stage));
      values.advance();
#pragma unroll
      for (int i = 0; i < D / 2; ++i) out[i] *= rescale[i / 2 % 2];
      round_weights();
      clear_unseen_values(item, tile);
    }

    wait_barrier(barriers.value_full(values.stage), values.parity);
    hold(out);
    wgmma_fence();
    multiply_values();
    wgmma_wait<0>();
    hold(out);
    release(barriers.value_empty(values.stage));
    values.advance();
    write(item);
  }

  __device__ __forceinline__ void run() {
    scale = kOptions ? 1.0F : p.scale * kLog2E;
    if (warpgroup == 1) arrive_256(kTurn);  // warpgroup 0 is first
    while (true) {
      wait_barrier(barriers.query_full(queries.stage), queries.parity);
      const PrefillItem item =
          *reinterpret_cast<const PrefillItem*>(shared + Shared::kItems + queries.stage * 64);
      if (item.count == 0) return;
      attend(item);
      queries.advance();
    }
  }
};

#endif

template <typename T, int D, bool kOptions>
__global__ void __launch_bounds__(WgmmaShared<D>::kThreads, 1)
    prefill_wgmma_kernel(const __grid_constant__ AttentionParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shared = WgmmaShared<D>;
  extern __shared__ std::byte unaligned[];
  std::byte* shared =
      unaligned + (Shared::kAlignment - shared_address(unaligned) % Shared::kAlignment) % Shared::kAlignment;
  const Barriers<D> barriers{shared_address(shared) + Shared::kBarriers};
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      init_barrier(barriers.query_full(i), Shared::kFetchQueryThreads);
      init_barrier(barriers.query_empty(i), Shared::kConsumerWarps);
    }
    for (int i = 0; i < Shared::kStages; ++i) {
      init_barrier(barriers.key_full(i), 1);
      init_barrier(barriers.value_full(i), 1);
      init_barrier(barriers.key_empty(i), Shared::kConsumerWarps);
      init_barrier(barriers.value_empty(i), Shared::kConsumerWarps);
    }
    fence_for_async();
  }
  __syncthreads();

  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;\n");
    if (threadIdx.x < 32) {
      fetch_keys_and_values<D>(p, shared_address(shared), barriers);
    } else {
      fetch_queries<T, D>(p, shared, barriers);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;\n");
    Consumer<T, D, kOptions> consumer{.p = p, .shared = shared, .barriers = barriers};
    consumer.warpgroup = static_cast<int>(threadIdx.x) / 128 - 1;
    consumer.thread = static_cast<int>(threadIdx.x) % 128;
    consumer.run();
  }
#endif
}

template <typename T, int D, bool kOptions>
void launch_kernel(const LaunchContext& ctx, const AttentionParams& p) {
  constexpr auto kernel = prefill_wgmma_kernel<T, D, kOptions>;
  constexpr int bytes = WgmmaShared<D>::kBytes;
  static std::atomic<uint64_t> prepared{0};
  const cudaError_t error = allow_shared_bytes(prepared, reinterpret_cast<const void*>(kernel), bytes);
  if (error != cudaSuccess) return note_error(ctx, "prefill_wgmma_attention", "", cudaGetErrorString(error));
  const unsigned grid = prefill_grid(p, device_limits().num_sms);
  kernel<<<grid, WgmmaShared<D>::kThreads, bytes, stream_of(ctx)>>>(p);
  check_launch(ctx, "prefill_wgmma_attention", "[%d tokens, %d heads, %d KV heads, %d]", p.num_tokens,
               p.num_heads, p.num_kv_heads, D);
}

template <typename T>
void launch(const LaunchContext& ctx, const AttentionParams& p) {
  const bool options = p.soft_cap > 0.0F || p.alibi_slopes != nullptr;
  if (p.head_size == 64)
    return options ? launch_kernel<T, 64, true>(ctx, p) : launch_kernel<T, 64, false>(ctx, p);
  options ? launch_kernel<T, 128, true>(ctx, p) : launch_kernel<T, 128, false>(ctx, p);
}

}  // namespace

void launch_prefill_wgmma(const LaunchContext& ctx, const AttentionParams& params, DType dtype) {
  dtype == DType::kBFloat16 ? launch<bf16>(ctx, params) : launch<fp16>(ctx, params);
}

int prefill_wgmma_shared_bytes(int head_size) {
  return head_size == 64 ? WgmmaShared<64>::kBytes : WgmmaShared<128>::kBytes;
}

}  // namespace quire::cuda
