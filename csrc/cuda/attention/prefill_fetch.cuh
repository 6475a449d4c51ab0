// What the warpgroup that fetches does in prefill on Hopper, and where it leaves it.
#pragma once

#include "attention/prefill.cuh"
#include "common/cluster.cuh"
#include "common/dependent_launch.cuh"
#include "common/divisor.h"
#include "common/hopper.cuh"
#include "common/tensor_map.h"

namespace quire::cuda::wgmma_prefill {

template <int D>
struct WgmmaShared {
  static constexpr int kWarpgroups = prefill_warpgroups(D), kRows = wgmma_prefill_rows(D);
  static constexpr int kThreads = 128 * (1 + kWarpgroups), kFetchQueryThreads = 96,
                       kConsumerWarps = 4 * kWarpgroups;
  // Of a thread, and no more in all than the block begins with.
  static constexpr int kFetchRegisters = kWarpgroups == 2 ? 56 : 32,
                       kConsumerRegisters = kWarpgroups == 2 ? 224 : 160;
  static_assert(kFetchRegisters + kWarpgroups * kConsumerRegisters <=
                (1 + kWarpgroups) * (65536 / kThreads / 8 * 8));
  static constexpr int kKeys = D <= 128 ? 128 : 64;  // of a tile
  // Keys and values lie as their pages do, atoms along D first, queries as panels of an atom's width.
  static constexpr int kAtomShift = kv_atom_shift(D, 2), kAtomRowBytes = 16 << kAtomShift;
  static constexpr int kAtomBytes = kAtomTokens * kAtomRowBytes, kPanelBytes = kRows * kAtomRowBytes;
  static constexpr int kPanels = 2 * D / kAtomRowBytes;
  static constexpr int kQueryBytes = kPanels * kPanelBytes, kTileBytes = kKeys * D * 2;
  static constexpr int kStages = D <= 64 ? 4 : D <= 96 ? 3 : 2;
  static constexpr int kQueryStages = D <= 128 ? 3 : 1;  // of an item each: its queries, then its results
  static constexpr int kQueries = 0;
  static constexpr int kKeyTiles = kQueries + kQueryStages * kQueryBytes;
  static constexpr int kValueTiles = kKeyTiles + kStages * kTileBytes;
  static constexpr int kItems = kValueTiles + kStages * kTileBytes;
  static constexpr int kItemRing = kQueryStages + 1;  // the next one, and those that have a stage
  static constexpr int kBarriers = kItems + kItemRing * 64;
  static constexpr int kAlignment = 1024;  // of swizzle atoms; not more is promised than 16
  // Where a row's chunk lies in an item's queries.
  static __device__ __forceinline__ int query_offset(int row, int chunk) {
    return (chunk >> kAtomShift) * kPanelBytes + row * kAtomRowBytes +
           kv_atom_chunk(kAtomShift, row, chunk) * 16;
  }
  static constexpr int kBytes = kBarriers + (2 * kQueryStages + 2 * kItemRing + 4 * kStages) * 8 + kAlignment;
  static_assert(kThreads == 32 + kFetchQueryThreads + 32 * kConsumerWarps && kBytes <= 227 * 1024 &&
                sizeof(PrefillItem) <= 64);
};

// Queries and results [tokens, heads, D]: a box is an atom's columns of an item's tokens and heads.
struct PrefillMaps {
  CUtensorMap query, out;
};

template <typename T, int D>
bool make_prefill_maps(PrefillMaps& maps, const AttentionParams& p) {
  const TensorBox box{.rows = p.num_queries_per_kv,
                      .columns = WgmmaShared<D>::kAtomRowBytes / 2,
                      .matrices = p.prefill_rows / p.num_queries_per_kv};
  constexpr bool kIsBf16 = std::is_same_v<T, bf16>;
  return make_tensor_map(maps.query, p.query, kIsBf16, D, p.num_heads, p.query_head_stride * 2, p.num_tokens,
                         p.query_stride * 2, box) &&
         make_tensor_map(maps.out, p.out, kIsBf16, D, p.num_heads, p.out_head_stride * 2, p.num_tokens,
                         p.out_stride * 2, box);
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The addresses of the barriers: "full" and "empty" of keys and values; of a stage the queries are there, or
// the results. An item is known before there is room for its queries, at the place of the item whose results
// were written last: whoever reads that has read it by then. That the other block's place is free, which has
// no items of its own, its barrier in the block that asks says.
template <int D>
struct Barriers {
  static constexpr int kQueryStages = WgmmaShared<D>::kQueryStages, kStages = WgmmaShared<D>::kStages,
                       kItemRing = WgmmaShared<D>::kItemRing, kItems = 2 * kQueryStages,
                       kKeys = kItems + 2 * kItemRing;
  uint32_t base;
  __device__ uint32_t at(int i) const { return base + static_cast<uint32_t>(i) * 8; }
  __device__ uint32_t query_full(int i) const { return at(i); }
  __device__ uint32_t result_full(int i) const { return at(kQueryStages + i); }
  __device__ uint32_t item_known(int i) const { return at(kItems + i); }
  __device__ uint32_t item_free(int i) const { return at(kItems + kItemRing + i); }
  __device__ uint32_t key_full(int i) const { return at(kKeys + i); }
  __device__ uint32_t key_empty(int i) const { return at(kKeys + kStages + i); }
  __device__ uint32_t value_full(int i) const { return at(kKeys + 2 * kStages + i); }
  __device__ uint32_t value_empty(int i) const { return at(kKeys + 3 * kStages + i); }

  // One thread, before the block's others, or the cluster's, go on.
  template <int kBlocks>
  __device__ __forceinline__ void init() const {
    for (int i = 0; i < kQueryStages; ++i) {
      init_barrier(query_full(i), 1);
      init_barrier(result_full(i), WgmmaShared<D>::kConsumerWarps);
    }
    for (int i = 0; i < kItemRing; ++i) {
      init_barrier(item_known(i), 1);
      init_barrier(item_free(i), 1);
    }
    for (int i = 0; i < kStages; ++i) {
      init_barrier(key_full(i), 1);
      init_barrier(value_full(i), 1);
      init_barrier(key_empty(i), kBlocks * WgmmaShared<D>::kConsumerWarps);
      init_barrier(value_empty(i), kBlocks * WgmmaShared<D>::kConsumerWarps);
    }
    if constexpr (kBlocks > 1) publish_barriers();
    fence_for_async();
  }
};

// Places of items in their ring; a count of 0 says that there are no more, and -1 that the item is the other
// block's alone: this one computes rows that nobody writes, in step with it.
template <int D>
__device__ __forceinline__ PrefillItem& item_at(std::byte* shared, int place) {
  return *reinterpret_cast<PrefillItem*>(shared + WgmmaShared<D>::kItems + place * 64);
}

template <int kBlocks>
__device__ __forceinline__ int rank_in_cluster() {
  return static_cast<int>(blockIdx.x) % kBlocks;
}

template <int D, int kBlocks>
__device__ __forceinline__ void wait_for_item(Barriers<D> barriers, Ring<WgmmaShared<D>::kItemRing> items) {
  if constexpr (kBlocks > 1) {
    cluster::wait_barrier(barriers.item_known(items.stage), items.parity);
  } else {
    wait_barrier(barriers.item_known(items.stage), items.parity);
  }
}

template <int D, typename Items>
__device__ __forceinline__ void fetch_keys_and_values(const AttentionParams& p, std::byte* shared,
                                                      Barriers<D> barriers) {
  using Shared = WgmmaShared<D>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // A copy each: what of a page, or of a tile, is contiguous. The fewer copies the faster they are.
  const int piece_tokens = min(p.block_size, Shared::kKeys / Items::kBlocks),
            pieces = Shared::kKeys / piece_tokens;
  const bool is_mine = lane % Items::kBlocks == rank_in_cluster<Items::kBlocks>();
  const uint32_t piece_bytes = static_cast<uint32_t>(piece_tokens) * (2 * D);
  const uint32_t to = shared_address(shared) + static_cast<uint32_t>(lane) * piece_bytes;
  const int64_t to_values = static_cast<int64_t>(p.num_kv_heads) * p.block_size * (2 * D);
  // What was prepared for the step passes by the L1 cache where it is read before the wait.
  const auto load = [](const int32_t* from) { return Items::kParts ? __ldcg(from) : __ldg(from); };
  Ring<Shared::kItemRing> items;
  Ring<Shared::kStages> ring;
  // A prompt's own are written by the kernel in front, what decode rows share long before it.
  if (!Items::kParts || p.waits_for_prefixes) wait_for_inputs();
  for (;; items.advance()) {
    wait_for_item<D, Items::kBlocks>(barriers, items);
    const PrefillItem item = item_at<D>(shared, items.stage);
    if (item.count == 0) return;
    for (int tile = item.tiles_end(Shared::kKeys) - 1; tile >= item.tiles_begin(Shared::kKeys); --tile) {
      const int token = tile * Shared::kKeys + lane * piece_tokens;
      const bool wanted = lane < pieces && token < item.seq_len && token + piece_tokens > item.low;
      const std::byte* from = p.cache;
      if (wanted) {
        // Asked for with every tile: it is in the cache, and these few registers have no room for it.
        const int64_t blocks = load(p.state_indices + item.row) * p.block_table_stride;
        const int block = load(p.block_table + blocks + (token >> p.block_shift));
        from += block * p.page_stride_bytes + kv_group_offset(0, item.kv_head, token & (p.block_size - 1),
                                                              p.num_kv_heads, p.block_size, 2 * D);
      }
      const uint32_t bytes = piece_bytes * static_cast<uint32_t>(__popc(__ballot_sync(0xFFFFFFFFU, wanted)));
      const auto fetch = [&](uint32_t full, uint32_t empty, int tiles, const std::byte* source) {
        wait_barrier(empty, ring.parity ^ 1);
        if (lane == 0) arrive_expecting(full, bytes);
        __syncwarp();
        const uint32_t at = to + static_cast<uint32_t>(tiles + ring.stage * Shared::kTileBytes);
        if constexpr (Items::kBlocks > 1) {
          if (wanted && is_mine) copy_bulk_to((1U << Items::kBlocks) - 1, at, source, piece_bytes, full);
        } else {
          if (wanted) copy_bulk(at, source, piece_bytes, full);
        }
      };
      fetch(barriers.key_full(ring.stage), barriers.key_empty(ring.stage), Shared::kKeyTiles, from);
      fetch(barriers.value_full(ring.stage), barriers.value_empty(ring.stage), Shared::kValueTiles,
            from + to_values);
      ring.advance();
    }
  }
}

// Three warps that ask for items, send for their queries, and write the results that come to lie where
// these were.
template <typename T, int D, typename Items>
struct QueryWarps {
  using Shared = WgmmaShared<D>;
  static constexpr int kTogether = 7;  // a named barrier of theirs; Consumer has others
  // Tiles of an item that takes hardly longer than to ask for one, send for its queries and write its
  // results.
  static constexpr int kShortItem = 2;

  const AttentionParams& p;
  const PrefillMaps& maps;
  Divisor by_heads;
  std::byte* shared;
  Barriers<D> barriers;
  int thread;
  Ring<Shared::kItemRing> asked, written;
  Ring<Shared::kQueryStages> sent, leaving;

  __device__ __forceinline__ void ask(Items& items) {
    if (thread >= 32 || rank_in_cluster<Items::kBlocks>() > 0) return;
    PrefillItem next{};
    items.ask(p, next);
    if (thread > 0) return;
    if constexpr (Items::kBlocks > 1) {
      wait_barrier(barriers.item_free(asked.stage), asked.parity ^ 1);
      tell_other(next);
      if (next.count > 0) next.divide(0, p.prefill_rows, p.prefill_rows / p.num_queries_per_kv);
    }
    item_at<D>(shared, asked.stage) = next;
    arrive(barriers.item_known(asked.stage));
  }

  // The other block what it has of an item.
  __device__ __forceinline__ void tell_other(PrefillItem item) {
    if (item.count > 0) item.divide(1, p.prefill_rows, p.prefill_rows / p.num_queries_per_kv);
    constexpr int kWords = static_cast<int>(sizeof(PrefillItem) / 4);
    int words[kWords];
    memcpy(words, &item, sizeof(item));
    const uint32_t to = cluster::address_of(&item_at<D>(shared, asked.stage), 1);
#pragma unroll
    for (int i = 0; i < kWords; ++i) cluster::store(to + static_cast<uint32_t>(i) * 4, words[i]);
    cluster::arrive_at<true>(barriers.item_known(asked.stage), 1);
  }

  __device__ __forceinline__ uint32_t panel(int stage, int i) const {
    return shared_address(shared) +
           static_cast<uint32_t>(Shared::kQueries + stage * Shared::kQueryBytes + i * Shared::kPanelBytes);
  }

  // One thread.
  __device__ __forceinline__ void send_for(const PrefillItem& item, int stage) {
    arrive_expecting(barriers.query_full(stage), static_cast<uint32_t>(p.prefill_rows) * (2 * D));
#pragma unroll
    for (int i = 0; i < Shared::kPanels; ++i)
      copy_tensor(panel(stage, i), &maps.query, i * (Shared::kAtomRowBytes / 2),
                  item.kv_head * p.num_queries_per_kv, item.query_begin + item.first_token,
                  barriers.query_full(stage));
  }

  // The results of the item at `written`, when they are there. Where it has fewer tokens than a box, the box
  // would reach into the next prompt's results: threads write those.
  __device__ __forceinline__ void write() {
    const int stage = leaving.stage;
    wait_barrier(barriers.result_full(stage), leaving.parity);
    if constexpr (!Items::kParts) {
      const PrefillItem& item = item_at<D>(shared, written.stage);
      if (item.count < p.prefill_rows) {
        write_rows(item, stage);
      } else if (thread == 0) {
#pragma unroll
        for (int i = 0; i < Shared::kPanels; ++i)
          store_tensor(&maps.out, i * (Shared::kAtomRowBytes / 2), item.kv_head * p.num_queries_per_kv,
                       item.query_begin + item.first_token, panel(stage, i));
        commit_stores();
        wait_for_stores();
      }
      sync_threads<Shared::kFetchQueryThreads>(kTogether);  // the stage and the item's place are free
    }
    if constexpr (Items::kBlocks > 1) {
      if (thread == 0 && rank_in_cluster<Items::kBlocks>() > 0)
        cluster::arrive_at(barriers.item_free(written.stage), 0);
    }
    leaving.advance();
    written.advance();
  }

  __device__ __forceinline__ void write_rows(const PrefillItem& item, int stage) {
    constexpr int kChunks = D / 8, kRowsAtOnce = Shared::kFetchQueryThreads / kChunks;
    if (thread < kRowsAtOnce * kChunks) {
      const int chunk = thread % kChunks;
      T* const to = static_cast<T*>(p.out) + (item.query_begin + item.first_token) * p.out_stride +
                    item.kv_head * p.num_queries_per_kv * p.out_head_stride + chunk * 8;
      const std::byte* const from = shared + Shared::kQueries + stage * Shared::kQueryBytes;
      const int count = item.count;
#pragma unroll 2
      for (int row = thread / kChunks; row < count; row += kRowsAtOnce)
        *reinterpret_cast<uint4*>(to + by_heads.quotient(row) * p.out_stride +
                                  by_heads.rest(row) * p.out_head_stride) =
            *reinterpret_cast<const uint4*>(from + Shared::query_offset(row, chunk));
    }
    fence_for_async();  // the next queries come over what was read
  }

  // Asks for an item only when the one before the last is done, unless the last is short: what a block has
  // asked for, no other can take off it.
  __device__ __forceinline__ void run() {
    if (Items::kParts && thread >= 32) return;  // the results are written already
    constexpr int kStages = Shared::kQueryStages;
    Items items(p);
    ask(items);  // the first is the block's own: nothing is written before the wait
    wait_for_inputs();
    int in_stages = 0;      // items whose results are not written
    bool is_short = false;  // the last of these
    for (;; sent.advance()) {
      if (in_stages == kStages) {
        write();
        --in_stages;
      }
      const bool waits = kStages > 1 && in_stages == kStages - 1 && !is_short;
      if (waits) wait_barrier(barriers.result_full(leaving.stage), leaving.parity);  // the last one is begun
      wait_for_item<D, Items::kBlocks>(barriers, asked);
      const PrefillItem& item = item_at<D>(shared, asked.stage);
      const bool is_one = item.count != 0;
      if (thread == 0) {
        if (is_one) {
          send_for(item, sent.stage);
        } else {
          arrive(barriers.query_full(sent.stage));
        }
      }
      if (!is_one) break;
      is_short = item.tiles_end(Shared::kKeys) - item.tiles_begin(Shared::kKeys) <= kShortItem;
      ++in_stages;
      asked.advance();
      ask(items);
      if (waits) {
        write();
        --in_stages;
      }
    }
    for (; in_stages > 0; --in_stages) write();
  }
};

#endif

}  // namespace quire::cuda::wgmma_prefill
