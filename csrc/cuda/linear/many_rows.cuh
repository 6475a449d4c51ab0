// A persistent product of many rows of x with a gated weight, which applies the activation itself: what the
// two halves of the weight give is never written, nor read again.
//
// A tile is 128 rows of x by up to 256 of the weight, half of them the gate's and half up's, so that a thread
// has both of each of its outputs. One thread sends for what is read, 64 columns a stage; two warpgroups
// multiply 64 rows of x each, activate, and have their outputs written by tensor copies, while what the next
// tile begins with is on its way. The two blocks of a cluster have the same rows of the weight: each sends
// for half of them, to both. Rows of x that one block takes have no cluster.
//
// Tiles that run at the same time are of few rows of x and few of the weight, which the L2 cache then holds.
#pragma once

#include "common/activation.cuh"
#include "common/cluster.cuh"
#include "common/dependent_launch.cuh"
#include "common/hopper.cuh"
#include "common/tensor_map.h"

namespace quire::cuda::many_rows {

constexpr int kRows = 128;  // of a tile
template <int kBlocks>      // of a cluster: one or two
constexpr int kClusterRows = kBlocks * kRows;
constexpr int kDepth = 64;  // of a stage: 128 bytes of each row, which is what a swizzle atom has
constexpr int kRowBytes = kDepth * 2;
constexpr int kXBytes = kRows * kRowBytes;
template <int kOutputs>  // of a tile, a multiple of 16
constexpr int kHalfBytes = kOutputs * kRowBytes;
template <int kOutputs>
constexpr int kStageBytes = kXBytes + 2 * kHalfBytes<kOutputs>;
constexpr int kStages = 4;
constexpr int kEarlyStages = 2;  // what the kernels in front read waits behind more than 64 KB
constexpr int kBoxColumns = 64;  // of what is written at once
constexpr int kBoxBytes = 64 * kBoxColumns * 2;
constexpr int kBoxes = 2;  // of a warpgroup: a tile's first columns and its last, of which some may be both's
constexpr int kAlignment = 1024;
template <int kOutputs>
constexpr int kSharedBytes = kAlignment + kStages * (kStageBytes<kOutputs> + 2 * 8) + 2 * kBoxes * kBoxBytes;
constexpr int kThreads = 384, kConsumerWarps = 8;
// Tiles of rows of x, in clusters, that have one part of the weight before all have the next.
constexpr int kGroup = 8;

template <typename T>
struct Parameters {
  CUtensorMap x;       // boxes of a tile's rows
  CUtensorMap weight;  // boxes of half a tile's rows
  CUtensorMap out;     // boxes of a warpgroup's rows
  const float* bias;   // [2 n] or null
  Activation activation;
  int m, n, k;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

struct Barriers {
  uint32_t base;
  __device__ uint32_t full(int stage) const { return base + static_cast<uint32_t>(stage) * 8; }
  __device__ uint32_t empty(int stage) const { return full(kStages + stage); }
};

// The tiles of a block, one after the other.
template <typename T, int kBlocks, int kOutputs>
class Tiles {
 public:
  __device__ explicit Tiles(const Parameters<T>& p)
      : clusters_of_rows_((p.m + kClusterRows<kBlocks> - 1) / kClusterRows<kBlocks>),
        columns_((p.n + kOutputs - 1) / kOutputs),
        index_(static_cast<int>(blockIdx.x) / kBlocks) {
    find();
  }
  __device__ bool has_one() const { return index_ < clusters_of_rows_ * columns_; }
  __device__ void advance() {
    index_ += static_cast<int>(gridDim.x) / kBlocks;
    find();
  }
  int first_row, first_output;

 private:
  __device__ void find() {
    const int group = index_ / (kGroup * columns_), in_group = index_ - group * kGroup * columns_;
    const int rows = min(kGroup, clusters_of_rows_ - group * kGroup);
    const int rank = static_cast<int>(blockIdx.x) % kBlocks;
    first_output = in_group / max(rows, 1) * kOutputs;
    first_row = ((group * kGroup + in_group % max(rows, 1)) * kBlocks + rank) * kRows;
  }
  int clusters_of_rows_, columns_, index_;
};

// A thread's work. Sends for the weight of the first stages before what is in front has ended.
template <typename T, int kBlocks, int kOutputs>
__device__ __forceinline__ void fetch(const Parameters<T>& p, uint32_t stages, Barriers barriers) {
  const int rank = static_cast<int>(blockIdx.x) % kBlocks;
  const auto send_weight = [&](int stage, int column, int row) {
    const uint32_t full = barriers.full(stage);
    const uint32_t to = stages + static_cast<uint32_t>(stage * kStageBytes<kOutputs> + kXBytes);
    arrive_expecting(full, kStageBytes<kOutputs>);
    if constexpr (kBlocks > 1) {
      copy_tensor_to(0b11, to + static_cast<uint32_t>(rank * kHalfBytes<kOutputs>), &p.weight, column,
                     row + rank * p.n, 0, full);
    } else {
      copy_tensor(to, &p.weight, column, row, 0, full);
      copy_tensor(to + kHalfBytes<kOutputs>, &p.weight, column, row + p.n, 0, full);
    }
  };
  Tiles<T, kBlocks, kOutputs> tiles(p);
  for (int i = 0; i < kEarlyStages && i * kDepth < p.k; ++i) send_weight(i, i * kDepth, tiles.first_output);
  wait_for_inputs();
  let_next_start();
  int early = kEarlyStages;
  Ring<kStages> ring;
#pragma unroll 1
  for (; tiles.has_one(); tiles.advance()) {
#pragma unroll 1
    for (int column = 0; column < p.k; column += kDepth, ring.advance()) {
      wait_barrier(barriers.empty(ring.stage), ring.parity ^ 1);
      if (--early < 0) send_weight(ring.stage, column, tiles.first_output);
      copy_tensor(stages + static_cast<uint32_t>(ring.stage * kStageBytes<kOutputs>), &p.x, column,
                  tiles.first_row, 0, barriers.full(ring.stage));
    }
    early = 0;
  }
}

// sums: of rows lane / 4 and the one eight on of the warp's 16, the gate's columns 8 j + 2 (lane % 4) and the
// next one at 4 j, up's behind all of the gate's. To the warpgroup's boxes, in the layout that a tensor copy
// takes.
template <typename T, Activation kActivation, int kOutputs>
__device__ __forceinline__ void activate_to(uint32_t boxes, const Parameters<T>& p, int first_output,
                                            const float (&sums)[kOutputs]) {
  constexpr int kInSecond = (kOutputs - kBoxColumns) / 8;  // blocks of eight columns before the second box
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) % 128 / 32;
  const int column = first_output + 2 * (lane % 4);
  const int row = warp * 16 + lane % 16, block = lane / 16;  // that the lane gives an address of
  const auto rounded = [](float x) { return to_float(from_float<T>(x)); };
#pragma unroll
  for (int j = 0; j < kOutputs / 8; j += 2) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = 4 * j + 2 * i;
      float2 gate{sums[at], sums[at + 1]}, up{sums[kOutputs / 2 + at], sums[kOutputs / 2 + at + 1]};
      if (p.bias != nullptr) {
        const int output = column + 8 * (j + i / 2);
        if (output < p.n) {  // of which there are multiples of 8
          gate.x += __ldg(p.bias + output);
          gate.y += __ldg(p.bias + output + 1);
          up.x += __ldg(p.bias + p.n + output);
          up.y += __ldg(p.bias + p.n + output + 1);
        }
      }
      words[i] = pack<T>(activate_gated<kActivation>(rounded(gate.x), rounded(up.x)),
                         activate_gated<kActivation>(rounded(gate.y), rounded(up.y)));
    }
    const auto store = [&](int box, int first_block) {
      const int chunk = first_block + block;
      store_matrices(boxes + static_cast<uint32_t>(box * kBoxBytes + row * 128 + ((chunk ^ row % 8) * 16)),
                     words);
    };
    if (j < kBoxColumns / 8) store(0, j);
    if (j >= kInSecond) store(1, j - kInSecond);
  }
}

template <typename T, int kBlocks, int kOutputs>
__device__ __forceinline__ void multiply(const Parameters<T>& p, uint32_t stages, uint32_t out,
                                         Barriers barriers) {
  const int warpgroup = static_cast<int>(threadIdx.x) / 128 - 1;
  const bool is_first = threadIdx.x % 128 == 0;
  const uint32_t boxes = out + static_cast<uint32_t>(warpgroup * kBoxes * kBoxBytes);
  const int steps = (p.k + kDepth - 1) / kDepth;
  Ring<kStages> ring;
  float sums[kOutputs];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto release = [&](int stage) {
    if constexpr (kBlocks > 1) {
      if (lane < kBlocks) cluster::arrive_at(barriers.empty(stage), lane);
    } else {
      if (lane == 0) arrive(barriers.empty(stage));
    }
  };
  const auto multiply_stage = [&](int adds) {
    wait_barrier(barriers.full(ring.stage), ring.parity);
    const uint32_t at = stages + static_cast<uint32_t>(ring.stage * kStageBytes<kOutputs>);
    const uint64_t x =
        matrix_descriptor(at + static_cast<uint32_t>(warpgroup * 64 * kRowBytes), 16, 8 * kRowBytes);
    const uint64_t weight = matrix_descriptor(at + kXBytes, 16, 8 * kRowBytes);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kDepth / 16; ++i) {
      const auto bytes = static_cast<uint32_t>(i * 32);
      wgmma_rows<T>(sums, advanced(x, bytes), advanced(weight, bytes), i > 0 ? 1 : adds);
    }
    wgmma_commit();
  };
#pragma unroll 1
  for (Tiles<T, kBlocks, kOutputs> tiles(p); tiles.has_one(); tiles.advance()) {
    hold(sums);
    multiply_stage(0);
#pragma unroll 1
    for (int i = 1; i < steps; ++i) {
      const int before = ring.stage;
      ring.advance();
      multiply_stage(1);
      wgmma_wait<1>();
      release(before);
    }
    wgmma_wait<0>();
    hold(sums);
    release(ring.stage);
    ring.advance();
    if (is_first) wait_for_stores();
    sync_threads<128>(1 + warpgroup);
    dispatch_activation(p.activation, [&](auto kind) {
      activate_to<T, decltype(kind)::value>(boxes, p, tiles.first_output, sums);
    });
    fence_for_async();
    sync_threads<128>(1 + warpgroup);
    if (is_first) {
#pragma unroll
      for (int i = 0; i < kBoxes; ++i) {
        store_tensor(&p.out, tiles.first_output + i * (kOutputs - kBoxColumns),
                     tiles.first_row + warpgroup * 64, 0, boxes + static_cast<uint32_t>(i * kBoxBytes));
      }
      commit_stores();
    }
  }
  if (is_first) wait_for_stores();
}

#endif

template <typename T, int kBlocks, int kOutputs>
__global__ void __launch_bounds__(kThreads, 1)
    gated_many_rows_kernel(const __grid_constant__ Parameters<T> p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ std::byte unaligned[];
  const uint32_t start = shared_address(unaligned);
  const uint32_t stages = (start + kAlignment - 1) / kAlignment * kAlignment;
  const uint32_t out = stages + kStages * kStageBytes<kOutputs>;
  const Barriers barriers{out + 2 * kBoxes * kBoxBytes};
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      init_barrier(barriers.full(i), 1);
      init_barrier(barriers.empty(i), kConsumerWarps * kBlocks);
    }
    fence_for_async();
    publish_barriers();
    prefetch_map(&p.x);
    prefetch_map(&p.weight);
    prefetch_map(&p.out);
  }
  cluster::meet<kBlocks>();  // nothing comes to a barrier that is not there
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;\n");
    if (threadIdx.x == 0) fetch<T, kBlocks, kOutputs>(p, stages, barriers);
    __syncwarp();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;\n");
    wait_for_inputs();
    let_next_start();
    multiply<T, kBlocks, kOutputs>(p, stages, out, barriers);
    __syncwarp();
  }
  if constexpr (kBlocks > 1) cluster::meet<kBlocks>();  // nor to a block that has ended
#endif
}

}  // namespace quire::cuda::many_rows
