// The plan of a step's attention: how the decode rows' work is cut into equal pieces, and where the prefill
// rows' tiles begin. All of it is read from device memory, so a captured launch is right for every replay.
#include <bit>

#include "attention/params.h"
#include "attention/selector.h"
#include "common/launch.h"
#include "ops.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 512;

// tiles_before[i] = sum of count(j), j < i, for i in [0, n]; returns the last. One block.
template <typename Count>
__device__ int prefix_sums(int32_t* tiles_before, int n, int* shared, Count count) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int total = 0;
  for (int base = 0; base < n; base += kThreads) {
    const int i = base + static_cast<int>(threadIdx.x);
    int sum = i < n ? count(i) : 0;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int other = __shfl_up_sync(0xFFFFFFFFU, sum, offset);
      if (lane >= offset) sum += other;
    }
    if (lane == 31) shared[warp] = sum;
    __syncthreads();
    int before = total;
    for (int w = 0; w < kThreads / 32; ++w) {
      if (w < warp) before += shared[w];
      total += shared[w];
    }
    __syncthreads();
    if (i < n) tiles_before[i + 1] = before + sum;
  }
  if (threadIdx.x == 0) tiles_before[0] = 0;
  return total;
}

struct PlanParams {
  AttentionPlan* plan;
  const int32_t* query_start_loc;
  const int32_t* seq_lens;
  const int32_t* state_indices;
  const int32_t* common_prefix_len;  // of the decode rows, where these may share keys
  int common_parts;                  // at most; 0: they do not
  int num_rows, num_decode_rows, num_queries_per_kv, prefill_rows, units, sliding_window, blocks, clusters;
  int captured_rows;  // decode rows of the graph that these are padded for, if they are
};

// Of a row that begins at or before `at`, where `begins` [0, n) never fall: the last, which is not empty
// where something lies at `at`, for the next begins later.
template <typename Begin>
__device__ __forceinline__ int row_at(int n, int at, Begin begin) {
  int low = 0, high = n - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (begin(middle) <= at) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// In a graph there are more rows, but no more than the next power of two: with and without one the same.
int captured_rows(int num_decode_rows) {
  return static_cast<int>(std::bit_ceil(static_cast<unsigned>(num_decode_rows)));
}

// Of a cluster at the least, where a (row, unit) has more: three a block, for to put together what clusters
// have takes longer.
constexpr int kClusterTiles = 3 * kClusterBlocks;

// A (row, unit) has so many clusters that none of them has more than `most` tiles, which is chosen so that
// they suffice: there are at most two thirds as many (row, unit)s.
template <typename Tiles>
__device__ void plan_clusters(const PlanParams& p, int tiles, int* shared, Tiles tiles_of) {
  AttentionPlan& plan = *p.plan;
  int32_t* clusters_before = plan.tiles_before(p.blocks);
  const int most = max(kClusterTiles, ceil_div(tiles * p.units, p.clusters - p.captured_rows * p.units));
  const int total = prefix_sums(clusters_before, p.num_decode_rows, shared,
                                [&](int row) { return ceil_div(tiles_of(row), most) * p.units; });
  __syncthreads();
  for (int block = static_cast<int>(threadIdx.x); block < p.blocks; block += kThreads)
    plan.counters(p.blocks)[block] = 0;
  for (int i = static_cast<int>(threadIdx.x); i < p.clusters; i += kThreads) {
    DecodeCluster cluster = {};
    if (i < total) {
      const int row = row_at(p.num_decode_rows, i, [&](int r) { return clusters_before[r]; });
      const int count = tiles_of(row), parts = ceil_div(count, most), inside = i - clusters_before[row];
      const int part = inside % parts, first = count * part / parts;
      cluster = {row,
                 inside / parts,
                 first,
                 count * (part + 1) / parts - first,
                 p.seq_lens[row],
                 p.state_indices[row],
                 part,
                 parts};
    }
    plan.clusters()[i] = cluster;
  }
  __threadfence();
}

__global__ void __launch_bounds__(kThreads) plan_attention_kernel(const __grid_constant__ PlanParams p) {
  __shared__ int shared[kThreads / 32];
  AttentionPlan& plan = *p.plan;
  int32_t* tiles_before = plan.tiles_before(p.blocks);
  // Each row has keys of its own, the last one's at least.
  const int common = p.common_parts > 0 ? *p.common_prefix_len / kCommonTokens * kCommonTokens : 0;
  const auto tiles_of = [&](int row) {
    return last_token_tiles(p.seq_lens[row], p.sliding_window, kDecodeTokens, common).count;
  };
  const int tiles = prefix_sums(tiles_before, p.num_decode_rows, shared, tiles_of);
  const int prefill_tiles =
      prefix_sums(tiles_before + p.num_decode_rows + 1, p.num_rows - p.num_decode_rows, shared, [&](int i) {
        const int row = p.num_decode_rows + i;
        return ceil_div((p.query_start_loc[row + 1] - p.query_start_loc[row]) * p.num_queries_per_kv,
                        p.prefill_rows);
      });
  const int total = tiles * p.units;
  const int chunk = max(1, ceil_div(total, p.blocks));
  if (threadIdx.x == 0) {
    plan.decode_tiles = total;
    plan.decode_chunk = chunk;
    plan.common_tokens = common;
    plan.common_parts = min(p.common_parts, common / kCommonTokens);
    plan.prefill_tiles = prefill_tiles;
    plan.prefill_next = 0;
  }
  __syncthreads();  // tiles_before is written
  if (p.clusters > 0) return plan_clusters(p, tiles, shared, tiles_of);
  for (int block = static_cast<int>(threadIdx.x); block < p.blocks; block += kThreads) {
    plan.counters(p.blocks)[block] = 0;
    const int begin = block * chunk;
    DecodeStart start = {};
    if (begin < total) {
      const int low = row_at(p.num_decode_rows, begin, [&](int row) { return tiles_before[row] * p.units; });
      const int count = tiles_of(low), inside = begin - tiles_before[low] * p.units;
      start = {low, inside / count, inside % count, p.seq_lens[low], p.state_indices[low]};
    }
    plan.starts()[block] = start;
  }
  __threadfence();  // the decode kernel reads it as soon as this one has ended
}

}  // namespace

int decode_grid(int head_size) {
  // Two blocks of four warps share a multiprocessor, unless their shared memory is too large.
  return device_limits().num_sms * (head_size <= 128 ? 2 : 1);
}

int decode_clusters(int num_decode_rows, int units, int head_size) {
  if (!has_clusters() || num_decode_rows == 0) return 0;
  const int clusters = resident_decode_clusters(head_size);
  return 3 * captured_rows(num_decode_rows) * units <= 2 * clusters ? clusters : 0;
}

size_t attention_plan_bytes(int32_t max_num_seqs, int32_t /*max_tokens*/) {
  return AttentionPlan::bytes(decode_grid(0), max_num_seqs);
}

size_t attention_workspace_bytes(int32_t /*max_tokens*/, int32_t /*max_seq_len*/, int32_t /*num_heads*/,
                                 int32_t /*num_kv_heads*/, int32_t head_size) {
  return static_cast<size_t>(decode_grid(head_size)) * 2 * kDecodeHeads *
             (static_cast<size_t>(head_size) + 2) * sizeof(float) +
         common_prefix_bytes(head_size);
}

void plan_attention(const LaunchContext& ctx, const AttentionMetadata& batch, const AttentionLayer& layer) {
  const auto num_rows = static_cast<int>(batch.seq_lens.shape[0]);
  if (num_rows == 0 || layer.kernel == static_cast<int32_t>(AttentionKernel::kSimt)) return;
  const int units = decode_units(layer.num_heads, layer.num_kv_heads);
  const PlanParams p = {.plan = static_cast<AttentionPlan*>(batch.plan),
                        .query_start_loc = batch.query_start_loc.as<int32_t>(),
                        .seq_lens = batch.seq_lens.as<int32_t>(),
                        .state_indices = batch.state_indices.as<int32_t>(),
                        .common_prefix_len = batch.common_prefix_len.as<int32_t>(),
                        .common_parts = common_prefix_parts(batch, layer),
                        .num_rows = num_rows,
                        .num_decode_rows = batch.num_decode_rows,
                        .num_queries_per_kv = layer.num_heads / layer.num_kv_heads,
                        .prefill_rows = prefill_rows(layer) * prefill_blocks(batch, layer),
                        .units = units,
                        .sliding_window = layer.sliding_window,
                        .blocks = decode_grid(layer.head_size),
                        .clusters = decode_clusters(batch.num_decode_rows, units, layer.head_size),
                        .captured_rows = captured_rows(batch.num_decode_rows)};
  plan_attention_kernel<<<1, kThreads, 0, stream_of(ctx)>>>(p);
  check_launch(ctx, "plan_attention", "[%d rows, %d decode]", num_rows, batch.num_decode_rows);
}

}  // namespace quire::cuda
