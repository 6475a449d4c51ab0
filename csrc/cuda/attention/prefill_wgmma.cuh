// Prefill on Hopper: warp-specialised, with asynchronous tensor cores.
//
// Warpgroup 0 fetches. Its warp 0 sends for keys and values, one bulk copy per page and head: pages hold them
// in the very order that wgmma takes from shared memory. Its other warps send for the next items' queries and
// write results; one of them asks for items. The others have 64 query rows each. Two take turns with the
// tensor cores, at a pair of named barriers: while one of them works out its softmax the other multiplies.
// Three need no turns. Within a warpgroup the scores of a tile and the output of the tile before are computed
// together, the tile before being the item's before where an item begins.
//
// What blocks attend to is in Items (prefill.cuh, common_prefix.cuh).
#pragma once

#include "attention/prefill_fetch.cuh"
#include "common/dependent_launch.cuh"

namespace quire::cuda::wgmma_prefill {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// One warpgroup's 64 query rows of every item.
template <typename T, int D, bool kOptions, typename Items>
struct Consumer {
  using Shared = WgmmaShared<D>;
  // Named barriers; 0 is __syncthreads.
  static constexpr int kTurn = 1, kZeroed = 3, kAttended = 4;
  static constexpr bool kTakesTurns = Shared::kWarpgroups == 2;

  const AttentionParams& p;
  Divisor by_heads;
  std::byte* shared;
  Barriers<D> barriers;
  int warpgroup, thread;  // from 0 on; in it
  int warp_row;           // the warp's first query row, of 16
  Ring<Shared::kQueryStages> queries;
  Ring<Shared::kItemRing> items;
  Ring<Shared::kStages> keys, values;

  // An item's queries may be there before the one in front is written.
  static constexpr bool kOverlapsItems = Shared::kQueryStages > 1 && kTakesTurns;
  PrefillItem item;  // whose scores are worked out
  int tile;          // of its keys, from the last to the first
  int position[2];
  float slope[2], max[2], sum[2];
  float scale;                                         // of scores, to units of log2
  static constexpr int kScores = Shared::kKeys / 2;    // of a thread
  static constexpr int kColumns = D <= 128 ? D : 128;  // that one instruction computes
  float scores[kScores], out[D / kColumns][kColumns / 2];
  uint32_t weights[Shared::kKeys / 16][4];
  // Queries in registers are not read from shared memory with each tile, which takes power, and so clock.
  static constexpr bool kHoldsQueries = kOverlapsItems;
  uint32_t held[kHoldsQueries ? D / 16 : 1][4];

  __device__ __forceinline__ uint32_t address(int offset) const {
    return shared_address(shared) + static_cast<uint32_t>(offset);
  }

  __device__ __forceinline__ void release(uint32_t barrier) {
    __syncwarp();
    if (thread % 32 == 0) arrive(barrier);
  }
  // Keys or values, in all blocks that they were sent to together.
  __device__ __forceinline__ void release_tile(uint32_t empty) {
    if constexpr (Items::kBlocks > 1) {
      __syncwarp();
      if (thread % 32 < Items::kBlocks) cluster::arrive_at(empty, thread % 32);
    } else {
      release(empty);
    }
  }

  __device__ __forceinline__ void take_turn() {
    if (kTakesTurns) sync_threads<256>(kTurn + warpgroup);
  }
  __device__ __forceinline__ void pass_turn() {
    if (kTakesTurns) arrive_threads<256>(kTurn + (warpgroup ^ 1));
  }

  __device__ __forceinline__ void hold_out() {
#pragma unroll
    for (auto& columns : out) hold(columns);
  }

  // Enqueues scores = Q K^T.
  __device__ __forceinline__ void multiply_keys() {
    constexpr int kInAtom = 1 << (Shared::kAtomShift - 1);  // steps of 16 columns
    const uint64_t a = matrix_descriptor<Shared::kAtomRowBytes>(
        address(Shared::kQueries + queries.stage * Shared::kQueryBytes +
                warpgroup * 64 * Shared::kAtomRowBytes),
        16, Shared::kAtomBytes);
    const uint64_t b =
        matrix_descriptor<Shared::kAtomRowBytes>(address(Shared::kKeyTiles + keys.stage * Shared::kTileBytes),
                                                 16, Shared::kPanels * Shared::kAtomBytes);
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      const uint64_t keys_of_k =
          advanced(b, static_cast<uint32_t>(k / kInAtom * Shared::kAtomBytes + k % kInAtom * 32));
      if constexpr (kHoldsQueries) {
        wgmma_registers<T, false>(scores, held[k], keys_of_k, k > 0 ? 1 : 0);
      } else {
        wgmma_rows<T>(
            scores, advanced(a, static_cast<uint32_t>(k / kInAtom * Shared::kPanelBytes + k % kInAtom * 32)),
            keys_of_k, k > 0 ? 1 : 0);
      }
    }
    wgmma_commit();
  }

  // Enqueues out += P V.
  __device__ __forceinline__ void multiply_values() {
    constexpr int kAtomsAtOnce = 2 * kColumns / Shared::kAtomRowBytes;
    const uint64_t b = matrix_descriptor<Shared::kAtomRowBytes>(
        address(Shared::kValueTiles + values.stage * Shared::kTileBytes), Shared::kAtomBytes,
        Shared::kPanels * Shared::kAtomBytes);
#pragma unroll
    for (int k = 0; k < Shared::kKeys / 16; ++k)
#pragma unroll
      for (int c = 0; c < D / kColumns; ++c)
        wgmma_registers<T, true>(
            out[c], weights[k],
            advanced(
                b, static_cast<uint32_t>((k * 2 * Shared::kPanels + c * kAtomsAtOnce) * Shared::kAtomBytes)),
            1);
    wgmma_commit();
  }

  // Scores become weights, not yet rounded; `rescale` is what the output so far must be multiplied by.
  __device__ __forceinline__ void softmax(float (&rescale)[2]) {
    const int first_key = tile * Shared::kKeys + 2 * (thread % 4), last_key = (tile + 1) * Shared::kKeys - 1;
    if constexpr (kOptions) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) {
        const int key = first_key + i / 4 * 8 + i % 2, r = i / 2 % 2;
        scores[i] = scaled_score<true>(scores[i], p.scale, p.soft_cap, slope[r], key - position[r]);
      }
    }
    if (last_key > item.first_position ||
        (p.sliding_window > 0 && tile * Shared::kKeys <= item.last_position - p.sliding_window)) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) {
        const int key = first_key + i / 4 * 8 + i % 2, at = position[i / 2 % 2];
        if (key > at || (p.sliding_window > 0 && key <= at - p.sliding_window)) scores[i] = kNegativeInfinity;
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = max[r];
#pragma unroll
      for (int i = 2 * r; i < kScores; i += 4) top = fmaxf(top, fmaxf(scores[i], scores[i + 1]));
      top = quad_max(top);
      const float highest = top == kNegativeInfinity ? 0.0F : top;  // no key yet
      const float base = highest * scale;
      // Exactly 1 where a tile has nothing to see: which tiles others' rows need changes no bit.
      rescale[r] = fast_exp2((max[r] - highest) * scale);
      max[r] = top;
      float part = 0.0F;
#pragma unroll
      for (int i = 2 * r; i < kScores; i += 4) {
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

  // Values of keys that no query may see may be NaN, or left from another tile, and 0 * NaN is NaN. All
  // warpgroups clear them together.
  __device__ __forceinline__ void clear_unseen_values() {
    if (tile * Shared::kKeys >= item.low && (tile + 1) * Shared::kKeys <= item.seq_len) return;
    wait_barrier(barriers.value_full(values.stage), values.parity);
    std::byte* base = shared + Shared::kValueTiles + values.stage * Shared::kTileBytes;
    for (int i = warpgroup * 128 + thread; i < Shared::kTileBytes / 16; i += 128 * Shared::kWarpgroups) {
      const int key = tile * Shared::kKeys + kv_group_token(Shared::kAtomShift, D / 8, i);
      if (key < item.low || key >= item.seq_len) reinterpret_cast<uint4*>(base)[i] = {0U, 0U, 0U, 0U};
    }
    fence_for_async();
    sync_threads<128 * Shared::kWarpgroups>(kZeroed);
  }

  // An item whose scores are all worked out: where it and its queries are, and what its rows came to.
  struct Done {
    int place, query_stage;
    float max[2], sum[2];
  };
  __device__ __forceinline__ Done done() const {
    return {items.stage, queries.stage, {max[0], max[1]}, {sum[0], sum[1]}};
  }

  // The results as they are, for whoever adds up the parts of a row.
  __device__ __forceinline__ void write_part(const Done& done) {
    const PrefillItem& item = item_at<D>(shared, done.place);
    const int lane = thread % 32;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = warp_row + lane / 4 + 8 * r;
      const float total = quad_sum(done.sum[r]);
      if (row >= item.count) continue;
      const int token = item.first_token + by_heads.quotient(row);
      const int head = item.kv_head * p.num_queries_per_kv + by_heads.rest(row);
      const int64_t at = p.common_prefix.place(item.part, token, head);
      float* const to = p.common_prefix.out + at * D + 2 * (lane % 4);
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        const float* two = out[8 * n / kColumns] + 4 * n % (kColumns / 2) + 2 * r;
        *reinterpret_cast<float2*>(to + 8 * n) = {two[0], two[1]};
      }
      if (lane % 4 == 0) p.common_prefix.max_sums[at] = {done.max[r] * scale, total};
    }
    release(barriers.result_full(done.query_stage));
  }

  // The results go where the warpgroup's queries were, for whoever writes them as whole rows.
  __device__ __forceinline__ void leave_rows(const Done& done) {
    const PrefillItem& item = item_at<D>(shared, done.place);
    const int lane = thread % 32;
    float weight[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float total = quad_sum(done.sum[r]);
      weight[r] = 1.0F;
      if (p.sinks != nullptr) {
        const int head = item.kv_head * p.num_queries_per_kv + by_heads.rest(warp_row + lane / 4 + 8 * r);
        const float sink = p.sinks[head] * kLog2E, highest = done.max[r] * scale, top = fmaxf(sink, highest);
        weight[r] = fast_exp2(highest - top);
        total = total * weight[r] + fast_exp2(sink - top);
      }
      weight[r] /= total;
    }
    const int queries = Shared::kQueries + done.query_stage * Shared::kQueryBytes;
    const auto stored = [&](int row, int chunk) { return queries + Shared::query_offset(row, chunk); };
    sync_threads<128>(kAttended + warpgroup);  // nobody needs the queries any more
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
      uint32_t matrices[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 4 * (n + i / 2) % (kColumns / 2) + 2 * (i % 2);
        const float* two = out[8 * n / kColumns] + at;
        matrices[i] = pack<T>(two[0] * weight[i % 2], two[1] * weight[i % 2]);
      }
      store_matrices(address(stored(warp_row + lane % 16, n + lane / 16)), matrices);
    }
    fence_for_async();
    release(barriers.result_full(done.query_stage));
  }

  __device__ __forceinline__ void write(const Done& done) {
    if constexpr (Items::kParts) {
      write_part(done);
    } else {
      leave_rows(done);
    }
  }

  // Waits for the queries of the item at `items`; false when there are no more.
  __device__ __forceinline__ bool begin() {
    wait_barrier(barriers.query_full(queries.stage), queries.parity);
    item = item_at<D>(shared, items.stage);
    if (item.count == 0) return false;
    tile = item.tiles_end(Shared::kKeys) - 1;
    if constexpr (kHoldsQueries) {
      const int at = Shared::kQueries + queries.stage * Shared::kQueryBytes;
#pragma unroll
      for (int k = 0; k < D / 16; ++k)
        load_matrices(held[k],
                      address(at + Shared::query_offset(warp_row + thread % 16, 2 * k + thread % 32 / 16)));
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = warp_row + thread % 32 / 4 + 8 * r;
      position[r] =
          item.seq_len - item.query_len + min(item.first_token + by_heads.quotient(row), item.query_len - 1);
      max[r] = kNegativeInfinity;
      sum[r] = 0.0F;
      slope[r] = 0.0F;
      if (kOptions && p.alibi_slopes != nullptr)
        slope[r] = p.alibi_slopes[item.kv_head * p.num_queries_per_kv + by_heads.rest(row)];
    }
    return true;
  }
  __device__ __forceinline__ void advance() {
    queries.advance();
    items.advance();
  }

  __device__ __forceinline__ void clear_out() {
#pragma unroll
    for (auto& columns : out)
#pragma unroll
      for (float& x : columns) x = 0.0F;
  }

  // The weights of an item's first tile, with no product beside them.
  __device__ __forceinline__ void attend_first() {
    float rescale[2];
    wait_barrier(barriers.key_full(keys.stage), keys.parity);
    take_turn();
    hold(scores);
    wgmma_fence();
    multiply_keys();
    pass_turn();
    wgmma_wait<0>();
    hold(scores);
    release_tile(barriers.key_empty(keys.stage));
    keys.advance();
    softmax(rescale);
    round_weights();
    clear_unseen_values();
    clear_out();
  }

  // The product of an item's last tile, with no scores beside it.
  __device__ __forceinline__ void multiply_last() {
    wait_barrier(barriers.value_full(values.stage), values.parity);
    hold_out();
    wgmma_fence();
    multiply_values();
    wgmma_wait<0>();
    hold_out();
    release_tile(barriers.value_empty(values.stage));
    values.advance();
  }

  // The scores of a tile and the product of the one before it, which may be the item's before: then that
  // one is written.
  template <bool kWrites>
  __device__ __forceinline__ void attend_next(const Done& before) {
    float rescale[2];
    wait_barrier(barriers.key_full(keys.stage), keys.parity);
    take_turn();
    hold(scores);
    hold_out();
    wgmma_fence();
    multiply_keys();
    wait_barrier(barriers.value_full(values.stage), values.parity);
    wgmma_fence();
    multiply_values();
    pass_turn();
    wgmma_wait<1>();
    hold(scores);
    release_tile(barriers.key_empty(keys.stage));
    keys.advance();
    softmax(rescale);
    wgmma_wait<0>();
    hold_out();
    release_tile(barriers.value_empty(values.stage));
    values.advance();
    if constexpr (kWrites) {
      write(before);
      clear_out();
    } else {
#pragma unroll
      for (auto& columns : out)
#pragma unroll
        for (int i = 0; i < kColumns / 2; ++i) columns[i] *= rescale[i / 2 % 2];
    }
    round_weights();
    clear_unseen_values();
  }

  __device__ __forceinline__ void run() {
    scale = kOptions ? 1.0F : p.scale * kLog2E;
    if (warpgroup == 1) pass_turn();  // warpgroup 0 is first
    if (!begin()) return;
    attend_first();
    while (true) {
      const int first_tile = item.tiles_begin(Shared::kKeys);
      for (--tile; tile >= first_tile; --tile) attend_next<false>({});
      const Done before = done();
      if constexpr (kOverlapsItems) {
        advance();
        if (!begin()) {
          multiply_last();
          return write(before);
        }
        attend_next<true>(before);
      } else {
        multiply_last();
        write(before);
        advance();
        if (!begin()) return;
        attend_first();
      }
    }
  }
};

#endif

template <typename T, int D, bool kOptions, typename Items>
__global__ void __launch_bounds__(WgmmaShared<D>::kThreads, 1)
    prefill_wgmma_kernel(const __grid_constant__ AttentionParams p, const __grid_constant__ PrefillMaps maps,
                         Divisor by_heads) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shared = WgmmaShared<D>;
  extern __shared__ std::byte unaligned[];
  std::byte* shared =
      unaligned + (Shared::kAlignment - shared_address(unaligned) % Shared::kAlignment) % Shared::kAlignment;
  const Barriers<D> barriers{shared_address(shared) + Shared::kBarriers};
  if (threadIdx.x == 0) barriers.template init<Items::kBlocks>();
  cluster::meet<Items::kBlocks>();

  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(Shared::kFetchRegisters));
    if (threadIdx.x < 32) {
      fetch_keys_and_values<D, Items>(p, shared, barriers);
    } else {
      QueryWarps<T, D, Items>{.p = p,
                              .maps = maps,
                              .by_heads = by_heads,
                              .shared = shared,
                              .barriers = barriers,
                              .thread = static_cast<int>(threadIdx.x) - 32}
          .run();
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(Shared::kConsumerRegisters));
    Consumer<T, D, kOptions, Items> consumer{
        .p = p, .by_heads = by_heads, .shared = shared, .barriers = barriers};
    consumer.warpgroup = static_cast<int>(threadIdx.x) / 128 - 1;
    consumer.thread = static_cast<int>(threadIdx.x) % 128;
    consumer.warp_row = static_cast<int>(threadIdx.x - 128) / 32 * 16;
    consumer.run();
  }
  if constexpr (Items::kBlocks > 1) cluster::meet<Items::kBlocks>();  // nobody writes to a block that is gone
#endif
}

}  // namespace quire::cuda::wgmma_prefill
