// What the warpgroup that fetches does in prefill on Hopper, and where it leaves it.
#pragma once

#include "attention/prefill.cuh"
#include "common/dependent_launch.cuh"
#include "common/divisor.h"
#include "common/hopper.cuh"

namespace quire::cuda::wgmma_prefill {

template <int D>
struct WgmmaShared {
  static constexpr int kWarpgroups = prefill_warpgroups(D), kRows = wgmma_prefill_rows(D);
  static constexpr int kThreads = 128 * (1 + kWarpgroups), kFetchQueryThreads = 96,
                       kConsumerWarps = 4 * kWarpgroups;
  // Of a thread, and no more in all than the block begins with.
  static constexpr int kFetchRegisters = kWarpgroups == 2 ? 40 : 32,
                       kConsumerRegisters = kWarpgroups == 2 ? 232 : 160;
  static_assert(kFetchRegisters + kWarpgroups * kConsumerRegisters <=
                (1 + kWarpgroups) * (65536 / kThreads / 8 * 8));
  static constexpr int kKeys = D <= 128 ? 128 : 64;  // of a tile
  // Keys and values lie as their pages do, atoms along D first, queries as panels of an atom's width.
  static constexpr int kAtomShift = kv_atom_shift(D, 2), kAtomRowBytes = 16 << kAtomShift;
  static constexpr int kAtomBytes = kAtomTokens * kAtomRowBytes, kPanelBytes = kRows * kAtomRowBytes;
  static constexpr int kPanels = 2 * D / kAtomRowBytes;
  static constexpr int kQueryBytes = kPanels * kPanelBytes, kTileBytes = kKeys * D * 2;
  static constexpr int kStages = D <= 64 ? 4 : D <= 96 ? 3 : 2;
  static constexpr int kQueryStages = D <= 128 ? 2 : 1;  // of an item each
  static constexpr int kQueries = 0;
  static constexpr int kKeyTiles = kQueries + kQueryStages * kQueryBytes;
  static constexpr int kValueTiles = kKeyTiles + kStages * kTileBytes;
  static constexpr int kItems = kValueTiles + kStages * kTileBytes;
  static constexpr int kItemRing = 3;  // the one that is next, and those whose queries are there
  static constexpr int kBarriers = kItems + kItemRing * 64;
  static constexpr int kAlignment = 1024;  // of swizzle atoms; not more is promised than 16
  // Where a row's chunk lies in an item's queries.
  static __device__ __forceinline__ int query_offset(int row, int chunk) {
    return (chunk >> kAtomShift) * kPanelBytes + row * kAtomRowBytes +
           kv_atom_chunk(kAtomShift, row, chunk) * 16;
  }
  static constexpr int kBytes = kBarriers + (4 + kItemRing + 4 * kStages) * 8 + kAlignment;
  static_assert(kThreads == 32 + kFetchQueryThreads + 32 * kConsumerWarps && kQueryStages < kItemRing &&
                sizeof(PrefillItem) <= 64);
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The addresses of the barriers: "full" and "empty" of queries, keys and values. An item is known before
// there is room for its queries; its place is free when the queries of the item two before it have been let
// go, as whoever reads it has read it by then.
template <int D>
struct Barriers {
  static constexpr int kStages = WgmmaShared<D>::kStages;
  uint32_t base;
  __device__ uint32_t at(int i) const { return base + static_cast<uint32_t>(i) * 8; }
  __device__ uint32_t query_full(int i) const { return at(i); }
  __device__ uint32_t query_empty(int i) const { return at(2 + i); }
  __device__ uint32_t key_full(int i) const { return at(4 + i); }
  __device__ uint32_t key_empty(int i) const { return at(4 + kStages + i); }
  __device__ uint32_t value_full(int i) const { return at(4 + 2 * kStages + i); }
  __device__ uint32_t value_empty(int i) const { return at(4 + 3 * kStages + i); }
  __device__ uint32_t item_known(int i) const { return at(4 + 4 * kStages + i); }
};

// Places of items in their ring; a count of 0 says that there are no more.
template <int D>
__device__ __forceinline__ PrefillItem& item_at(std::byte* shared, int place) {
  return *reinterpret_cast<PrefillItem*>(shared + WgmmaShared<D>::kItems + place * 64);
}

template <int D>
__device__ __forceinline__ void fetch_keys_and_values(const AttentionParams& p, std::byte* shared,
                                                      Barriers<D> barriers) {
  using Shared = WgmmaShared<D>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // A copy each: what of a page, or of a tile, is contiguous. The fewer copies the faster they are.
  const int piece_tokens = min(p.block_size, Shared::kKeys), pieces = Shared::kKeys / piece_tokens;
  const uint32_t piece_bytes = static_cast<uint32_t>(piece_tokens) * (2 * D);
  const uint32_t to = shared_address(shared) + static_cast<uint32_t>(lane) * piece_bytes;
  const int64_t to_values = static_cast<int64_t>(p.num_kv_heads) * p.block_size * (2 * D);
  Ring<Shared::kItemRing> items;
  Ring<Shared::kStages> ring;
  if (p.waits_for_prefixes) wait_for_inputs();
  for (;; items.advance()) {
    wait_barrier(barriers.item_known(items.stage), items.parity);
    const PrefillItem item = item_at<D>(shared, items.stage);
    if (item.count == 0) return;
    for (int tile = item.tiles_end(Shared::kKeys) - 1; tile >= item.tiles_begin(Shared::kKeys); --tile) {
      const int token = tile * Shared::kKeys + lane * piece_tokens;
      const bool wanted = lane < pieces && token < item.seq_len && token + piece_tokens > item.low;
      const std::byte* from = p.cache;
      if (wanted) {
        // Asked for with every tile: it is in the cache, and these few registers have no room for it.
        const int64_t blocks = __ldg(p.state_indices + item.row) * p.block_table_stride;
        const int block = __ldg(p.block_table + blocks + (token >> p.block_shift));
        from += block * p.page_stride_bytes + kv_group_offset(0, item.kv_head, token & (p.block_size - 1),
                                                              p.num_kv_heads, p.block_size, 2 * D);
      }
      const uint32_t bytes = piece_bytes * static_cast<uint32_t>(__popc(__ballot_sync(0xFFFFFFFFU, wanted)));
      const auto fetch = [&](uint32_t full, uint32_t empty, int tiles, const std::byte* source) {
        wait_barrier(empty, ring.parity ^ 1);
        if (lane == 0) arrive_expecting(full, bytes);
        __syncwarp();
        if (wanted)
          copy_bulk(to + static_cast<uint32_t>(tiles + ring.stage * Shared::kTileBytes), source, piece_bytes,
                    full);
      };
      fetch(barriers.key_full(ring.stage), barriers.key_empty(ring.stage), Shared::kKeyTiles, from);
      fetch(barriers.value_full(ring.stage), barriers.value_empty(ring.stage), Shared::kValueTiles,
            from + to_values);
      ring.advance();
    }
  }
}

template <typename T, int D, typename Items>
__device__ __forceinline__ void fetch_queries(const AttentionParams& p, Divisor by_heads, std::byte* shared,
                                              Barriers<D> barriers) {
  using Shared = WgmmaShared<D>;
  constexpr int kChunks = D / 8, kRowsAtOnce = Shared::kFetchQueryThreads / kChunks;
  const int thread = static_cast<int>(threadIdx.x) - 32;
  const int chunk = thread % kChunks,
            first_row = thread < kRowsAtOnce * kChunks ? thread / kChunks : Shared::kRows;
  const uint32_t to = shared_address(shared) + Shared::kQueries;
  Items items(p);
  Ring<Shared::kItemRing> known;
  const auto ask = [&](int place) {
    if (thread >= 32) return;
    PrefillItem next{};
    items.ask(p, next);
    if (thread == 0) {
      item_at<D>(shared, place) = next;
      arrive(barriers.item_known(place));
    }
  };
  ask(0);
  wait_for_inputs();  // keys and values in front of a batch's own may come before
  for (Ring<Shared::kQueryStages> ring;; ring.advance()) {
    wait_barrier(barriers.query_empty(ring.stage), ring.parity ^ 1);
    wait_barrier(barriers.item_known(known.stage), known.parity);
    const PrefillItem item = item_at<D>(shared, known.stage);
    if (item.count > 0) {
      const T* from = static_cast<const T*>(p.query) +
                      (item.query_begin + item.first_token) * p.query_stride +
                      item.kv_head * p.num_queries_per_kv * p.query_head_stride + chunk * 8;
      for (int row = first_row; row < Shared::kRows; row += kRowsAtOnce) {
        const int token = by_heads.quotient(item.first_head + row),
                  head = by_heads.rest(item.first_head + row);
        const bool valid = row < item.count;
        copy_async(
            to + static_cast<uint32_t>(ring.stage * Shared::kQueryBytes + Shared::query_offset(row, chunk)),
            valid ? from + token * p.query_stride + head * p.query_head_stride : from, valid);
      }
      commit_copies();
      wait_copies<0>();
      fence_for_async();
    }
    arrive(barriers.query_full(ring.stage));
    if (item.count == 0) return;
    known.advance();
    ask(known.stage);
  }
}

#endif

}  // namespace quire::cuda::wgmma_prefill
