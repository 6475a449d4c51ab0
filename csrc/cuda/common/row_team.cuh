// Blocks that go through one row together: a cluster, or one alone.
#pragma once

#include "common/cluster.cuh"
#include "common/ranking.cuh"

namespace quire::cuda {

constexpr int kMaxTeam = 8;  // blocks; a cluster may have as many on any device that has clusters

struct RowTeam {
  int rank = 0, size = 1;
  int begin = 0, end = 0;  // this block's part of the row, from a multiple of four

  __device__ RowTeam(int block, int blocks, int length) : rank(block), size(blocks) {
    const int part = (length + 4 * blocks - 1) / (4 * blocks) * 4;
    begin = min(rank * part, length);
    end = min(begin + part, length);
  }

  // Of all threads of all blocks.
  __device__ __forceinline__ void sync() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (size > 1) {
      cluster::arrive();
      cluster::wait();
      return;
    }
#endif
    __syncthreads();
  }
  // What the block of that rank has where this one has `own`, in shared memory.
  __device__ __forceinline__ Ranked read(const Ranked& own, int of_rank) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (size > 1) return cluster::load_u64(cluster::address_of(&own, of_rank));
#endif
    return own;
  }

  // Over all threads of all blocks, on every thread. `shared` has room for 32, `exchange` is for this alone.
  template <bool kMax>
  __device__ __forceinline__ Ranked reduce(Ranked x, Ranked* shared, Ranked& exchange) const {
    x = block_reduce<kMax>(x, shared);
    if (size == 1) return x;
    if (threadIdx.x == 0) exchange = x;
    sync();
    Ranked all = 0;
    for (int i = 0; i < size; ++i) {
      const Ranked part = read(exchange, i);
      all = kMax ? max(all, part) : all + part;
    }
    sync();  // before it is written again
    return all;
  }
};

}  // namespace quire::cuda
