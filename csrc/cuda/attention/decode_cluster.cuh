// Decode of few rows: clusters of blocks share a (row, unit), and put its parts together from each other's
// shared memory, each block some of the columns. Through the workspace the block that comes last would have
// all of them to read by itself, which takes as long as attending to a thousand tokens. Only where the tokens
// are so many that a (row, unit) has several clusters do these leave parts there, and the last of them adds
// up, again each of its blocks its columns.
#pragma once

#include "attention/decode_warp.cuh"
#include "common/cluster.cuh"
#include "common/dependent_launch.cuh"

namespace quire::cuda {

template <int D>
using ClusterShared = DecodeShared<D, kClusterStages<D>>;

template <typename T, int D, bool kOptions, int kHeadTiles>
__global__ void __launch_bounds__(ClusterShared<D>::kThreads, ClusterShared<D>::kBlocksPerSm)
    decode_cluster_kernel(const __grid_constant__ AttentionParams p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  using Shared = ClusterShared<D>;
  constexpr int kStages = Shared::kStages, kThreads = Shared::kThreads, kVectors = D / 4;
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ bool comes_last;
  // The block's part, when the pipeline is done.
  float* part_values = reinterpret_cast<float*>(shared);  // [kDecodeHeads][D]
  float2* part_max_sums = reinterpret_cast<float2*>(shared + kDecodeHeads * D * 4);
  static_assert(kDecodeHeads * (D * 4 + 8) <= Shared::kPipelineBytes);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int index = static_cast<int>(blockIdx.x) / kClusterBlocks;
  const int rank = static_cast<int>(blockIdx.x) % kClusterBlocks;
  let_next_start();

  // What does not change within a step is read before the layer's inputs are there. The plan may have been
  // made by the kernel in front: its writes are in the L2 cache when it ends.
  const auto* from = reinterpret_cast<const int4*>(p.plan->clusters() + index);
  const int4 tiles = __ldcg(from), rest = __ldcg(from + 1);
  if (tiles.w == 0) return wait_for_inputs();
  const int begin = tiles.w * rank / kClusterBlocks, end = tiles.w * (rank + 1) / kClusterBlocks;
  const int cluster_part = rest.z, cluster_parts = rest.w;
  DecodeCursor work{.row = tiles.x,
                    .state_index = rest.y,
                    .unit = tiles.y,
                    .tile = tiles.z + begin,
                    .remaining = end - begin};
  work.set_row(p, rest.x, common_tokens(p));

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
  const Segment segment = begin_segment(p, work, units_per_head);
  // Vectors of four columns that this block has at the end; a thread has one of them at most.
  const int vectors = segment.num_heads * kVectors;
  const int first = vectors * rank / kClusterBlocks, last = vectors * (rank + 1) / kClusterBlocks;
  static_assert(kDecodeHeads * kVectors <= kClusterBlocks * kThreads);
  const float sink = first + thread < last ? sink_of(p, segment.head + (first + thread) / kVectors) : 0.0F;
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
  state.load_queries(p, segment, shared_query, lane, warp);
  state.clear(p, segment, lane);
  int stage = 0;
  while (work.remaining > 0) {
    wait_copies<kStages - 2>();
    __syncwarp();
    pipeline.issue(stage == 0 ? kStages - 1 : stage - 1);
    if (work.group_counts(warp))
      state.add_group(p, work, shared_query, pipeline.stage_address(stage), scale, lane, warp);
    __syncwarp();  // the stage may be overwritten
    stage = stage + 1 == kStages ? 0 : stage + 1;
    work.advance(p, units);
  }

  state.merge_warps(segment.num_heads, reinterpret_cast<float*>(shared + Shared::kPipelineBytes),
                    reinterpret_cast<float2*>(shared + Shared::kMaxSumOffset), lane, warp,
                    [&](int row, int column, MaxSum sum, float4 values) {
                      *reinterpret_cast<float4*>(part_values + row * D + column) = values;
                      if (column == 0) part_max_sums[row] = {sum.max, sum.sum};
                    });
  cluster::arrive();
  cluster::wait();

  const auto write = [&](int i, const Columns& sum) {
    write_output<T>(p, segment.token, segment.head + i / kVectors, i % kVectors * 4, sum, sink);
  };
  // In the workspace: of a cluster's part, and of a head of it as one of its blocks needs it.
  const auto part_at = [&](int cluster, int i) {
    return reinterpret_cast<float4*>(p.partial_out) +
           static_cast<int64_t>(cluster) * kDecodeHeads * kVectors + i;
  };
  const auto max_sum_at = [&](int cluster, int row) {
    return reinterpret_cast<float2*>(p.partial_max_sum) + (cluster * kClusterBlocks + rank) * kDecodeHeads +
           row;
  };
  for (int i = first + thread; i < last; i += kThreads) {
    const int row = i / kVectors;
    float2 max_sums[kClusterBlocks];
    float4 parts[kClusterBlocks];
#pragma unroll
    for (int j = 0; j < kClusterBlocks; ++j) {
      max_sums[j] = cluster::load2(cluster::address_of(part_max_sums + row, j));
      parts[j] = cluster::load4(cluster::address_of(part_values + 4 * i, j));
    }
    Columns sum;
    sum.add(max_sums, parts);
    if (cluster_parts == 1) {
      write(i, sum);
    } else {
      __stcg(part_at(index, i), sum.values);
      if (i == first || i % kVectors == 0)
        __stcg(max_sum_at(index, row), float2{sum.total.max, sum.total.sum});
    }
  }
  cluster::arrive();  // has read what others have

  if (cluster_parts > 1) {
    const int first_cluster = index - cluster_part;
    __threadfence();
    __syncthreads();
    if (thread == 0) {
      int32_t* counter = p.plan->counters(p.decode_blocks) + first_cluster * kClusterBlocks + rank;
      comes_last = atomicAdd(counter, 1) == cluster_parts - 1;
      if (comes_last) *counter = 0;
    }
    __syncthreads();
    if (comes_last) {
      __threadfence();
      for (int i = first + thread; i < last; i += kThreads) {
        constexpr int kAtOnce = 8;
        Columns sum;
        for (int base = 0; base < cluster_parts; base += kAtOnce) {
          float2 max_sums[kAtOnce];
          float4 parts[kAtOnce];
#pragma unroll
          for (int j = 0; j < kAtOnce; ++j) {
            max_sums[j] = {kNegativeInfinity, 0.0F};
            parts[j] = {0.0F, 0.0F, 0.0F, 0.0F};
            if (base + j < cluster_parts) {
              max_sums[j] = __ldcg(max_sum_at(first_cluster + base + j, i / kVectors));
              parts[j] = __ldcg(part_at(first_cluster + base + j, i));
            }
          }
          sum.add(max_sums, parts);
        }
        write(i, sum);
      }
    }
  }
  cluster::wait();  // before this block's shared memory is gone
#endif
}

}  // namespace quire::cuda
