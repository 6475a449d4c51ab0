// How the decode kernel's blocks find their work: a stretch of the plan's line of tiles, and the groups of
// keys and values on their way from the cache.
#pragma once

#include "attention/params.h"
#include "attention/tensor_core.cuh"

namespace quire::cuda {

// Stages of a warp's pipeline, of which one is multiplied: to a multiprocessor 64 KB are on their way, or as
// much as half again. With more some multiprocessors have much more of the bandwidth than others, and the
// last ones are late. Clusters have as many stages as there is room for: what they wait for is the first
// bytes.
template <int D>
constexpr int kDecodeStages = D <= 64   ? 4
                              : D <= 96 ? 3
                                        : 2;
template <int D>
constexpr int kClusterStages = D <= 64    ? 6
                               : D <= 80  ? 4
                               : D <= 128 ? 3
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
  // Queries that would not fit the registers: operand B of each 16 elements of D, 16 bytes a lane.
  static constexpr int kQueryBytes = D > 128 ? kDecodeHeads * D * 2 : 0;
  static constexpr int kQueryOffset = kMaxSumOffset + kWarps * kDecodeHeads * 8;
  static constexpr int kBytes = kQueryOffset + kQueryBytes;
};

// Keys in front that are not the decode kernels'.
__device__ __forceinline__ int common_tokens(const AttentionParams& p) {
  return p.common_prefix.parts > 0 ? __ldcg(&p.plan->common_tokens) : 0;
}

// Walks a block's stretch of tiles; the same in all its threads.
struct DecodeCursor {
  int row, state_index, unit, tile, remaining;
  int seq_len, low, first_tile, num_tiles;  // of the row; keys [low, seq_len) count
  int common;                               // keys in front that are not this kernel's

  __device__ __forceinline__ void set_row(const AttentionParams& p, int length, int common_tokens) {
    common = common_tokens;
    const TileRange tiles = last_token_tiles(length, p.sliding_window, kDecodeTokens, common);
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
      state_index = __ldg(p.state_indices + row);  // on its way beside the length
      set_row(p, __ldg(p.seq_lens + row), common);
    } while (num_tiles == 0);
  }
  // The first key of a warp's group, and whether any of the group counts.
  __device__ __forceinline__ int group_token(int warp) const {
    return (first_tile + tile) * kDecodeTokens + warp * kGroupTokens;
  }
  __device__ __forceinline__ bool group_counts(int warp) const {
    const int token = group_token(warp);
    return token < seq_len && token + kGroupTokens > low;
  }
  __device__ __forceinline__ bool group_is_whole(int warp) const {
    const int token = group_token(warp);
    return token >= low && token + kGroupTokens <= seq_len;
  }
};

// A warp's own pipeline: the keys and values of its group of each tile, on their way into shared memory. It
// goes through the block's stretch of tiles ahead of the work.
template <int D, int kStageCount>
struct GroupPipeline {
  using Shared = DecodeShared<D, kStageCount>;

  const AttentionParams& p;
  DecodeCursor cursor;
  int units, units_per_head;
  uint32_t stages;  // address in shared memory
  int lane, warp;
  int block_id = 0;  // of the group to load next, asked for one tile early

  __device__ __forceinline__ uint32_t stage_address(int stage) const {
    return stages + static_cast<uint32_t>(stage * Shared::kStageBytes);
  }
  __device__ __forceinline__ void find_block() {
    if (cursor.remaining > 0 && cursor.group_counts(warp))
      block_id = __ldg(p.block_table + cursor.state_index * p.block_table_stride +
                       (cursor.group_token(warp) >> p.block_shift));
  }
  __device__ __forceinline__ bool next_has_last_token() const {
    return cursor.remaining > 0 && cursor.group_token(warp) + kGroupTokens >= cursor.seq_len;
  }
  // The next group, if there is one, to `stage`: all of it, also what does not count. The same number of
  // copies are committed in either case.
  __device__ __forceinline__ void issue(int stage) {
    if (cursor.remaining > 0) {
      if (cursor.group_counts(warp)) {
        const int token = cursor.group_token(warp);
        const std::byte* keys = p.cache + block_id * p.page_stride_bytes +
                                kv_group_offset(0, cursor.unit / units_per_head, token & (p.block_size - 1),
                                                p.num_kv_heads, p.block_size, 2 * D);
        const std::byte* values = keys + static_cast<int64_t>(p.num_kv_heads) * p.block_size * (2 * D);
        const uint32_t to = stage_address(stage);
#pragma unroll
        for (int j = 0; j < Group<D>::kChunks / 32; ++j) {
          const int i = 32 * j + lane;
          copy_async(to + i * 16, keys + i * 16, true);
          copy_async(to + Group<D>::kBytes + i * 16, values + i * 16, true);
        }
      }
      cursor.advance(p, units);
      find_block();
    }
    commit_copies();
  }
};

// The part of a (row, unit) that one block has.
struct Segment {
  int token = 0, head = 0, num_heads = 0;  // the query row, and its heads [head, head + num_heads)
  int first_tile = 0;                      // of the (row, unit)'s
};

__device__ __forceinline__ Segment begin_segment(const AttentionParams& p, const DecodeCursor& work,
                                                 int units_per_head) {
  const int kv_head = work.unit / units_per_head;
  const int first = (work.unit - kv_head * units_per_head) * kDecodeHeads;
  Segment segment;
  segment.num_heads = min(kDecodeHeads, p.num_queries_per_kv - first);
  segment.head = kv_head * p.num_queries_per_kv + first;
  segment.token = __ldg(p.query_start_loc + work.row);
  segment.first_tile = work.tile;
  return segment;
}

}  // namespace quire::cuda
