// What the attention kernels are launched with, and the plan they share.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "quire/kernels/attention_backend.h"
#include "quire/kernels/launch_context.h"

namespace quire::cuda {

// Warpgroups of the Hopper prefill kernel that multiply, each with 64 query rows. Heads of 64 elements have
// as many powers for a product as heads of 128 have for two, so that three have something to do.
constexpr int prefill_warpgroups(int head_size) { return head_size <= 64 ? 3 : 2; }
// Query rows of a prefill item. A row is a (token, head of one KV head) pair, heads fastest, so one tile of
// keys serves all of the KV head's queries.
constexpr int kMmaPrefillRows = 128;
constexpr int wgmma_prefill_rows(int head_size) { return 64 * prefill_warpgroups(head_size); }
// Of the layer's kernel. On Hopper whole tokens.
int prefill_rows(const AttentionLayer& layer);
// Blocks of a cluster that share an item's keys, each with prefill_rows of its rows, where it is not one
// block's.
constexpr int kPrefillPair = 2;
// Pairs are there for these head sizes, without soft caps and slopes: smaller heads gain 1 % by them.
constexpr bool has_prefill_pairs(int head_size) { return head_size >= 128; }
// Keys of a tile of the decode kernel: 16 for each of its four warps.
constexpr int kDecodeTokens = 64;
// Query heads of one KV head that the decode kernel takes at once; where it has more, they are several
// "units".
constexpr int kDecodeHeads = 16;

// Keys that rows share count by as many.
constexpr int kCommonTokens = 128;

// Blocks of a cluster, which read each other's shared memory.
constexpr int kClusterBlocks = 8;

// Blocks of the decode kernel: the plan cuts the step's work into as many equal pieces.
int decode_grid(int head_size);
// How many clusters of decode blocks are on the current device at the same time: its multiprocessors are in
// groups, which clusters do not span and seldom fill.
int resident_decode_clusters(int head_size);
// Clusters that few decode rows are divided among: each has a part of one (row, unit). 0 for more rows, which
// would leave none to spare for long ones.
int decode_clusters(int num_decode_rows, int units, int head_size);
constexpr int decode_units(int num_heads, int num_kv_heads) {
  return num_kv_heads * ((num_heads / num_kv_heads + kDecodeHeads - 1) / kDecodeHeads);
}

// The most parts that keys which decode rows share are divided into, for work for all multiprocessors; 0
// where they are not attended to apart: on other devices than Hopper, for few rows or too many.
int common_prefix_parts(const AttentionMetadata& batch, const AttentionLayer& layer);
// Bytes of CommonPrefix, at most.
size_t common_prefix_bytes(int head_size);

// f.operator()<D>() for the head size, which is one of those that the tensor cores' kernels are compiled for.
template <typename F>
auto with_head_size(int head_size, const F& f) {
  switch (head_size) {
    case 64: return f.template operator()<64>();
    case 80: return f.template operator()<80>();
    case 96: return f.template operator()<96>();
    case 128: return f.template operator()<128>();
    default: return f.template operator()<256>();
  }
}

// Where a block of the decode kernel begins. The work is every (decode row, unit, tile), tiles fastest; block
// b has [b * chunk, (b + 1) * chunk) of it.
struct alignas(16) DecodeStart {
  int32_t row, unit, tile, seq_len;
  int32_t state_index;  // of the row
};

// What a cluster of the decode kernel has: tiles [first_tile, first_tile + num_tiles) of a (row, unit), which
// is the `part`-th of its parts, whose clusters are neighbours. No tiles: nothing.
struct alignas(16) DecodeCluster {
  int32_t row, unit, first_tile, num_tiles;
  int32_t seq_len, state_index, part, parts;
};

// plan_attention's result, in device memory: this header, then the arrays that the accessors name.
struct alignas(64) AttentionPlan {
  int32_t decode_tiles;   // of all decode rows and units, without the keys in front that these share
  int32_t decode_chunk;   // a block's share
  int32_t common_tokens;  // the first keys of all decode rows, which are attended to apart; 0: none
  int32_t common_parts;   // into which these are divided
  int32_t prefill_tiles;  // of all prefill rows, for one KV head
  int32_t prefill_next;   // zero between kernels: how many items blocks have asked for

  static constexpr size_t bytes(int max_blocks, int max_num_seqs) {
    return sizeof(AttentionPlan) + static_cast<size_t>(max_blocks) * (sizeof(DecodeStart) + sizeof(int32_t)) +
           (static_cast<size_t>(max_num_seqs) + 2) * sizeof(int32_t);
  }
  __host__ __device__ DecodeStart* starts() { return reinterpret_cast<DecodeStart*>(this + 1); }
  // Instead of these, where there are any.
  __host__ __device__ DecodeCluster* clusters() { return reinterpret_cast<DecodeCluster*>(this + 1); }
  // [blocks], zero between kernels: how many pieces are done of the (row, unit) that begins in block b and
  // ends in another; with clusters, in the cluster of block b, of the columns that such blocks have.
  __host__ __device__ int32_t* counters(int blocks) { return reinterpret_cast<int32_t*>(starts() + blocks); }
  // [R + 2] tiles of (one unit or KV head of) the rows before, counted apart for decode and for prefill rows:
  // the first num_decode_rows + 1 are the decode rows', the others' begin with another 0.
  __host__ __device__ int32_t* tiles_before(int blocks) { return counters(blocks) + blocks; }
};

// What decode rows have of the keys in front that all of them share (common_prefix.cuh).
struct CommonPrefix {
  float* out = nullptr;        // [parts][num_rows][num_heads][D], not yet divided by the sums
  float2* max_sums = nullptr;  // [parts][num_rows][num_heads]: maximum, in units of log2, and sum
  int parts = 0;               // at most; 0: all rows attend to all their keys
  int num_rows = 0, num_heads = 0;

  __host__ __device__ int64_t place(int part, int row, int head) const {
    return (static_cast<int64_t>(part) * num_rows + row) * num_heads + head;
  }
};

struct AttentionParams {
  const void* query;
  void* out;
  int64_t query_stride, query_head_stride;  // elements
  int64_t out_stride, out_head_stride;
  const std::byte* cache;
  int64_t page_stride_bytes;
  const int32_t* block_table;
  int64_t block_table_stride;
  const int32_t* state_indices;
  const int32_t* query_start_loc;
  const int32_t* seq_lens;
  int num_tokens;  // an upper bound, as all on the host
  int num_rows, num_decode_rows;
  int num_heads, num_kv_heads, num_queries_per_kv, head_size;
  int prefill_rows;             // of an item, for each of its blocks
  int prefill_blocks;           // of an item
  int cached_head_tokens;       // as many tokens' keys and values of one head stay in the L2 cache
  int block_size, block_shift;  // block_size == 1 << block_shift
  bool waits_for_prefixes;      // keys and values are not read ahead
  float scale, soft_cap;
  int sliding_window;  // 0: none
  const float* alibi_slopes;
  const float* sinks;
  AttentionPlan* plan;
  int decode_blocks, decode_clusters;
  float* partial_out;      // [2 * decode_blocks][kDecodeHeads][D]
  float* partial_max_sum;  // [2 * decode_blocks][kDecodeHeads][2]
  CommonPrefix common_prefix;
};

struct TileRange {
  int begin, count;
};
// The tiles of `tile_tokens` keys that the last token of a sequence attends to, behind the first `common`
// ones.
__host__ __device__ inline TileRange last_token_tiles(int seq_len, int sliding_window, int tile_tokens,
                                                      int common) {
  const int first = sliding_window > 0 && seq_len > sliding_window ? seq_len - sliding_window : common;
  const int begin = first / tile_tokens;
  return {begin, seq_len > 0 ? (seq_len + tile_tokens - 1) / tile_tokens - begin : 0};
}

// The launchers. `dtype` is 16-bit but for simt, which takes every dtype and head size and all rows.
void launch_decode_bf16(const LaunchContext& ctx, const AttentionParams& params);
void launch_decode_fp16(const LaunchContext& ctx, const AttentionParams& params);
void launch_prefill_mma_bf16(const LaunchContext& ctx, const AttentionParams& params);
void launch_prefill_mma_fp16(const LaunchContext& ctx, const AttentionParams& params);
void launch_prefill_wgmma(const LaunchContext& ctx, const AttentionParams& params, DType dtype);
int prefill_wgmma_shared_bytes(int head_size);  // of a block
void launch_common_prefix(const LaunchContext& ctx, const AttentionParams& params, DType dtype);
void launch_simt(const LaunchContext& ctx, const AttentionParams& params, DType dtype);

}  // namespace quire::cuda
