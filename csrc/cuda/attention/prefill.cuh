// What the prefill kernels share: how their persistent blocks find work.
//
// An item is 128 query rows, or 192, of one (row of the batch, KV head). The plan counts a batch row's items;
// within it they go from the last queries, which have the most keys, to the first, the KV heads of a tile
// side by side, or as many at a time as fit the L2 cache. Blocks ask for one after the other (Hopper), or
// take them in turns, every other turn backwards. Two blocks that share keys have an item of twice the rows.
#pragma once

#include "attention/params.h"
#include "attention/tensor_core.cuh"
#include "common/launch.h"

namespace quire::cuda {

struct PrefillItem {
  int row, kv_head;
  int query_begin, query_len, seq_len;  // of the batch row
  int first, count;                     // packed query rows [first, first + count); see divide
  int first_token;                      // in the batch row, of row `first`
  int first_position, last_position;    // of the query rows' tokens
  int low;                              // the first key that any of them attends to
  int part;                             // where Items::kParts, of the keys

  // The tiles of `tile_keys` keys, [begin, end).
  __device__ __forceinline__ int tiles_begin(int tile_keys) const { return low / tile_keys; }
  __device__ __forceinline__ int tiles_end(int tile_keys) const { return last_position / tile_keys + 1; }
  // Leaves the block of that rank `rows` of the rows, of `tokens` tokens; a count of -1 where there are none
  // for it. The tiles remain those of all.
  __device__ __forceinline__ void divide(int rank, int rows, int tokens) {
    count = min(count - rank * rows, rows);
    if (count <= 0) count = -1;
    first += rank * rows;
    first_token += rank * tokens;
    first_position += rank * tokens;
  }
  // The position of a packed row's token; of the last one for rows that only fill the tile.
  __device__ __forceinline__ int position(int packed_row, int num_queries_per_kv) const {
    return seq_len - query_len + min((first + packed_row) / num_queries_per_kv, query_len - 1);
  }
};

// The items of a block, or of a cluster of so many, one after the other. Called by whole warps.
template <int kClusterSize>
class PrefillItems {
 public:
  static constexpr int kBlocks = kClusterSize;  // that share an item
  static_assert(kBlocks == 1 || kBlocks == kPrefillPair);
  static constexpr bool kParts =
      false;  // whether an item has a part of its rows' keys, and is one of several

  __device__ __forceinline__ explicit PrefillItems(const AttentionParams& p)
      : total_(__ldcg(&p.plan->prefill_tiles) * p.num_kv_heads) {}

  // The next one in turn; false when there are no more.
  __device__ __forceinline__ bool next(const AttentionParams& p, PrefillItem& item) {
    const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
    int index = total_;
    while (turn_ * blocks < total_ && index >= total_) {
      index = turn_ * blocks + (turn_ % 2 == 0 ? block : blocks - 1 - block);
      ++turn_;
    }
    return find(p, index, item);
  }

  // The first time the block's own, then one that nobody else has been given; false when there are no more,
  // after which the block may not ask again.
  __device__ __forceinline__ bool ask(const AttentionParams& p, PrefillItem& item) {
    int index = static_cast<int>(blockIdx.x) / kBlocks;
    if (turn_++ > 0) {
      int asked = 0;
      if (threadIdx.x % 32 == 0) {
        asked = atomicAdd(&p.plan->prefill_next, 1);
        // Each item's block asks once after it: this was the last time, and the next layer begins anew.
        if (asked == total_ - 1) p.plan->prefill_next = 0;
      }
      index = static_cast<int>(gridDim.x) / kBlocks + __shfl_sync(0xFFFFFFFFU, asked, 0);
    }
    return find(p, index, item);
  }

 private:
  // Places only go forward, and so do their rows. The plan is read past the L1 cache, as the kernel may have
  // started early (dependent_launch.cuh).
  __device__ __forceinline__ bool find(const AttentionParams& p, int index, PrefillItem& item) {
    if (index >= total_) return false;
    const int lane = static_cast<int>(threadIdx.x) % 32, rows = p.num_rows - p.num_decode_rows;
    const int32_t* tiles_before = p.plan->tiles_before(p.decode_blocks) + p.num_decode_rows + 1;
    const int tile = index / p.num_kv_heads;
    for (int passed = 32; passed == 32; row_ += passed) {
      const int i = row_ + 1 + lane;
      passed = __popc(__ballot_sync(0xFFFFFFFFU, i <= rows && __ldcg(tiles_before + i) <= tile));
    }
    const int before = __ldcg(tiles_before + row_), row_tiles = __ldcg(tiles_before + row_ + 1) - before;
    item.row = p.num_decode_rows + row_;
    item.query_begin = __ldcg(p.query_start_loc + item.row);
    item.query_len = __ldcg(p.query_start_loc + item.row + 1) - item.query_begin;
    item.seq_len = __ldcg(p.seq_lens + item.row);
    const int rows_of_one = kBlocks * p.prefill_rows;
    int heads = p.num_kv_heads, first_head = 0, inside = index - before * p.num_kv_heads;
    if (p.sliding_window == 0 && int64_t{item.seq_len} * heads > p.cached_head_tokens) {  // in equal groups
      const int groups = ceil_div(heads, max(1, p.cached_head_tokens / item.seq_len));
      const int most = ceil_div(heads, groups), group = inside / (most * row_tiles);
      inside -= group * most * row_tiles;
      first_head = group * most;
      heads = min(most, heads - first_head);
    }
    item.kv_head = first_head + inside % heads;
    item.first = (row_tiles - 1 - inside / heads) * rows_of_one;
    item.count = min(rows_of_one, item.query_len * p.num_queries_per_kv - item.first);
    item.first_token = item.first / p.num_queries_per_kv;
    item.first_position = item.position(0, p.num_queries_per_kv);
    item.last_position = item.position(item.count - 1, p.num_queries_per_kv);
    item.low = p.sliding_window > 0 ? max(0, item.first_position - p.sliding_window + 1) : 0;
    return true;
  }

  int total_, turn_ = 0, row_ = 0;
};

// No more blocks, or clusters of `blocks`, than there can be items.
inline unsigned prefill_grid(const AttentionParams& p, int max_blocks, int blocks = 1) {
  const int64_t rows = p.num_rows - p.num_decode_rows;
  const int64_t items =
      (static_cast<int64_t>(p.num_tokens) * p.num_queries_per_kv / (blocks * p.prefill_rows) + rows) *
      p.num_kv_heads;
  return static_cast<unsigned>(items < max_blocks ? items : max_blocks);
}

}  // namespace quire::cuda
