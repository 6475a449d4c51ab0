// Decode: one query token a row, split over its keys.
//
// The plan lays the step's (row, unit, tile of 64 keys) in one line and gives each block an equal stretch,
// however uneven the rows are. A unit is up to 16 query heads of one KV head: one or two times the 8 columns
// of the tensor cores' tile. Of a tile of keys each of the four warps takes one group of 16, the tensor
// cores' rows, with a pipeline of its own: the warps meet only where a (row, unit) ends. A block that had all
// of it writes the result; otherwise each block leaves its share in the workspace, and the one that comes
// last adds them up, in the order of the blocks: results do not depend on time. Few rows have clusters of
// blocks instead (decode_cluster.cuh).
#pragma once

#include <algorithm>

#include "attention/decode_cluster.cuh"
#include "common/dependent_launch.cuh"

namespace quire::cuda {

// Adds up the shares of one (row, unit) that blocks [first, last] left, where it begins at tile `begin` of
// the line.
template <typename T, int D>
__device__ void combine_parts(const AttentionParams& p, int begin, int chunk, int first, int last,
                              int num_heads, int token, int head) {
  constexpr int kBatch = 4;  // loads in flight; mostly there are two or three
  const int parts = last - first + 1;
  const int first_part = 2 * first + (begin == first * chunk ? 0 : 1);
  for (int i = static_cast<int>(threadIdx.x) * 4; i < num_heads * D; i += DecodeShared<D>::kThreads * 4) {
    const int row = i / D, column = i % D;
    Columns sum;
    for (int base = 0; base < parts; base += kBatch) {
      float2 max_sums[kBatch];
      float4 values[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int part = base + j;
        max_sums[j] = {kNegativeInfinity, 0.0F};
        values[j] = {0.0F, 0.0F, 0.0F, 0.0F};
        if (part < parts) {
          const int64_t at = (part == 0 ? first_part : 2 * (first + part)) * kDecodeHeads + row;
          max_sums[j] = __ldcg(reinterpret_cast<const float2*>(p.partial_max_sum) + at);
          values[j] = __ldcg(reinterpret_cast<const float4*>(p.partial_out + at * D + column));
        }
      }
      sum.add(max_sums, values);
    }
    write_output<T>(p, token, head + row, column, sum, sink_of(p, head + row));
  }
}

// After a block has left its part of a (row, unit) that blocks [first, last] share: true in all of its
// threads when the others have left theirs too. Nobody else is told so, and the counter is ready for the next
// layer.
__device__ __forceinline__ bool all_parts_are_there(const AttentionParams& p, int first, int last,
                                                    bool& comes_last) {
  int32_t* counter = p.plan->counters(p.decode_blocks) + first;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    comes_last = atomicAdd(counter, 1) == last - first;
    if (comes_last) *counter = 0;
  }
  __syncthreads();
  if (comes_last) __threadfence();
  return comes_last;
}

template <typename T, int D, bool kOptions, int kHeadTiles>
__global__ void __launch_bounds__(DecodeShared<D>::kThreads, DecodeShared<D>::kBlocksPerSm)
    decode_attention_kernel(const __grid_constant__ AttentionParams p) {
  using Shared = DecodeShared<D>;
  constexpr int kStages = Shared::kStages;
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ bool comes_last;
  float* merge = reinterpret_cast<float*>(shared + Shared::kPipelineBytes);
  float2* max_sums = reinterpret_cast<float2*>(shared + Shared::kMaxSumOffset);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int block = static_cast<int>(blockIdx.x);
  let_next_start();

  // What does not change within a step is read before the layer's inputs are there. The plan may have been
  // made by the kernel in front: its writes are in the L2 cache when it ends.
  const DecodeStart* start = p.plan->starts() + block;
  const int4 begin = __ldcg(reinterpret_cast<const int4*>(start));
  const int chunk = __ldcg(&p.plan->decode_chunk);
  DecodeCursor work{
      .row = begin.x, .state_index = __ldcg(&start->state_index), .unit = begin.y, .tile = begin.z};
  work.remaining = min(chunk, __ldcg(&p.plan->decode_tiles) - block * chunk);
  if (work.remaining <= 0) return wait_for_inputs();
  work.set_row(p, begin.w, common_tokens(p));

  const int units_per_head = (p.num_queries_per_kv + kDecodeHeads - 1) / kDecodeHeads;
  const int units = p.num_kv_heads * units_per_head;
  GroupPipeline<D, kStages> pipeline{
      p,
      work,
      units,
      units_per_head,
      shared_address(shared) + static_cast<uint32_t>(warp * kStages * Shared::kStageBytes),
      lane,
      warp};
  pipeline.find_block();
  Segment segment = begin_segment(p, work, units_per_head);
  // Earlier steps wrote all keys and values but the last token's, which comes from the kernel in front; or
  // this one did.
  bool waited = p.waits_for_prefixes;
  if (waited) wait_for_inputs();
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) {
    if (!waited && pipeline.next_has_last_token()) {
      wait_for_inputs();
      waited = true;
    }
    pipeline.issue(stage);
  }
  if (!waited) wait_for_inputs();

  uint4* shared_query = reinterpret_cast<uint4*>(shared + Shared::kQueryOffset) + lane;
  WarpState<T, D, kOptions, kStages, kHeadTiles> state;
  const float scale = kOptions ? p.scale : p.scale * kLog2E;
  int done = 0;  // tiles before this segment
  int stage = 0;

  for (bool fresh = true; work.remaining > 0;) {
    if (fresh) {
      state.load_queries(p, segment, shared_query, lane, warp);
      state.clear(p, segment, lane);
      fresh = false;
    }
    wait_copies<kStages - 2>();
    __syncwarp();
    pipeline.issue(stage == 0 ? kStages - 1 : stage - 1);
    if (work.group_counts(warp)) {
      state.add_group(p, work, shared_query, pipeline.stage_address(stage), scale, lane, warp);
    }
    __syncwarp();  // the stage may be overwritten
    stage = stage + 1 == kStages ? 0 : stage + 1;

    if (!work.ends_unit() && work.remaining > 1) {
      work.advance(p, units);
      continue;
    }

    const bool complete = segment.first_tile == 0 && work.ends_unit();
    const int line_begin = block * chunk + done - segment.first_tile;  // of the (row, unit)
    const int64_t part = (2 * block + (done > 0 ? 1 : 0)) * kDecodeHeads;
    state.merge_warps(
        segment.num_heads, merge, max_sums, lane, warp, [&](int row, int column, MaxSum sum, float4 values) {
          if (complete) {
            const int head = segment.head + row;
            write_output<T>(p, segment.token, head, column, {sum, values}, sink_of(p, head));
          } else {
            __stcg(reinterpret_cast<float4*>(p.partial_out + (part + row) * D + column), values);
            if (column == 0)
              __stcg(reinterpret_cast<float2*>(p.partial_max_sum) + part + row, float2{sum.max, sum.sum});
          }
        });
    if (!complete) {
      const int first_block = line_begin / chunk, last_block = (line_begin + work.num_tiles - 1) / chunk;
      if (all_parts_are_there(p, first_block, last_block, comes_last))
        combine_parts<T, D>(p, line_begin, chunk, first_block, last_block, segment.num_heads, segment.token,
                            segment.head);
    }
    done += work.tile - segment.first_tile + 1;
    fresh = true;
    work.advance(p, units);
    if (work.remaining > 0) segment = begin_segment(p, work, units_per_head);
  }
}

template <auto kKernel, typename Shared>
void launch_decode_kernel(const LaunchContext& ctx, const AttentionParams& p, Grid grid) {
  constexpr int bytes = Shared::kBytes;
  static std::atomic<uint64_t> prepared{0};
  const cudaError_t error = allow_shared_bytes(prepared, reinterpret_cast<const void*>(kKernel), bytes);
  if (error != cudaSuccess) return note_error(ctx, "decode_attention", "", cudaGetErrorString(error));
  launch_dependent(ctx, kKernel, grid, Shared::kThreads, bytes, p);
  check_launch(ctx, "decode_attention", "[%d rows, %d heads, %d KV heads, %d]", p.num_decode_rows,
               p.num_heads, p.num_kv_heads, p.head_size);
}

// How many clusters of that kernel are on the current device at the same time, found out once for each.
template <auto kKernel, int D>
int resident_clusters() {
  constexpr int bytes = ClusterShared<D>::kBytes;
  static std::atomic<uint64_t> prepared{0};
  static KnownClusters known;
  const auto* kernel = reinterpret_cast<const void*>(kKernel);
  if (allow_shared_bytes(prepared, kernel, bytes) != cudaSuccess) {
    cudaGetLastError();  // without clusters it is the other kernel's
    return 0;
  }
  const int most = active_clusters(known, kernel, kClusterBlocks, ClusterShared<D>::kThreads, bytes);
  return std::min(most, decode_grid(D) / kClusterBlocks);
}

template <typename T>
void launch_decode(const LaunchContext& ctx, const AttentionParams& p) {
  const auto with = [&]<int D, bool kOptions, int kHeadTiles>() {
    if (p.decode_clusters > 0) {
      launch_decode_kernel<decode_cluster_kernel<T, D, kOptions, kHeadTiles>, ClusterShared<D>>(
          ctx, p, Grid(static_cast<unsigned>(p.decode_clusters * kClusterBlocks), kClusterBlocks));
    } else {
      launch_decode_kernel<decode_attention_kernel<T, D, kOptions, kHeadTiles>, DecodeShared<D>>(
          ctx, p, static_cast<unsigned>(p.decode_blocks));
    }
  };
  with_head_size(p.head_size, [&]<int D>() {
    if (p.soft_cap > 0.0F || p.alibi_slopes != nullptr) {
      with.template operator()<D, true, 2>();  // of any number of heads: few models have these
    } else if (p.num_queries_per_kv > kDecodeHeads / 2) {
      with.template operator()<D, false, 2>();
    } else {
      with.template operator()<D, false, 1>();
    }
  });
}

}  // namespace quire::cuda
