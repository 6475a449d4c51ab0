// A weight's rows stream through a ring of shared memory, 64 columns a step, beside the same columns of all
// rows of x; two warpgroups multiply them, the weight's rows as the tensor cores' rows, so that few rows of x
// cost no more than there are.
//
// What limits it is how much comes into a multiprocessor: the weight, which is read once, and x, which each
// unit of the weight's rows reads again. So a unit has 256 rows where the weight has enough; where it has
// not, blocks of a cluster have one unit together, each a stretch of the columns, and add their sums up from
// each other's shared memory, each those of its rows of x. Rows are divided evenly among clusters, 16 by 16.
//
// The weight of a block's first steps is on its way before the kernel in front has ended.
#pragma once

#include "common/activation.cuh"
#include "common/cluster.cuh"
#include "common/dependent_launch.cuh"
#include "common/fragments.cuh"
#include "common/hopper.cuh"
#include "common/tensor_map.h"
#include "common/weight_stream.cuh"
#include "linear/wgmma_division.h"

namespace quire::cuda::wgmma_linear {

// Threads: a warpgroup of which two threads send for what is read, and two that multiply.
constexpr int kThreads = 384, kFetchers = 128, kConsumers = kThreads - kFetchers;

// Registers of a thread: as it starts, and as it multiplies, when the first warpgroup has given back most of
// its own. So few that blocks of the short kernels in front have room beside.
constexpr int kRegisters = 96, kRegistersToMultiply = 128, kRegistersToFetch = 32;
static_assert(kFetchers * kRegistersToFetch + kConsumers * kRegistersToMultiply <= kThreads * kRegisters);

template <typename T>
struct Parameters {
  CUtensorMap weight;  // boxes of half a unit
  CUtensorMap x;       // boxes of all rows
  const float* bias;   // of the weight's rows, or null
  void* out;
  int64_t out_stride;
  bool out_is_fp32;
  Activation activation;
  int m, n;       // of out: n is half of the weight's rows where it is gated
  int to_second;  // rows of the weight from the first half of a unit to the second
  int outputs;    // of a unit
  int steps;
  Division division;
};

// What a block has to do.
struct Share {
  int cluster, rank;  // of the block in it
  int first_step, num_steps;
  int num_units;

  template <typename T>
  __device__ explicit Share(const Parameters<T>& p) {
    const int blocks = p.division.cluster_blocks;
    cluster = static_cast<int>(blockIdx.x) / blocks;
    rank = static_cast<int>(blockIdx.x) % blocks;
    const int each = p.steps / blocks, longer = p.steps % blocks;
    first_step = rank * each + min(rank, longer);
    num_steps = each + (rank < longer ? 1 : 0);
    num_units = 0;
    while (num_units < p.division.units && first_output(p, num_units) < p.n) ++num_units;
  }
  template <typename T>
  __device__ __forceinline__ int first_output(const Parameters<T>& p, int unit) const {
    return (unit * p.division.clusters + cluster) * p.outputs;
  }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// In front of a block's shared memory.
struct Barriers {
  uint32_t base;
  // A stage's part of the weight is there, its part of x is, and it has been multiplied.
  __device__ uint32_t has_weight(int stage) const { return base + static_cast<uint32_t>(stage) * 8; }
  __device__ uint32_t has_x(int stage) const { return has_weight(kMaxStages + stage); }
  __device__ uint32_t empty(int stage) const { return has_weight(2 * kMaxStages + stage); }
  // A unit's sums have been written to where stages were, and been read.
  __device__ uint32_t written() const { return has_weight(3 * kMaxStages); }
};
static_assert((3 * kMaxStages + 1) * 8 <= kBarrierBytes);

struct Stages {
  int count, stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == count) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Calls send(row, column, stage) for the steps of all units, one after the other, when their stage is empty.
template <bool kWritesSums, typename T, typename F>
__device__ __forceinline__ void for_each_step(const Parameters<T>& p, Barriers barriers, F send) {
  const Share share(p);
  const int first = share.first_step * kDepth, end = first + share.num_steps * kDepth;
  Stages ring{p.division.stages};
#pragma unroll 1
  for (int unit = 0; unit < share.num_units; ++unit) {
    const int row = share.first_output(p, unit);
    if (kWritesSums && unit > 0) wait_barrier(barriers.written(), static_cast<uint32_t>(unit - 1) & 1);
#pragma unroll 1
    for (int column = first; column < end; column += kDepth, ring.advance()) {
      wait_barrier(barriers.empty(ring.stage), ring.parity ^ 1);
      send(row, column, ring.stage);
    }
  }
}

// A thread's work. Few bytes are on their way at a time, also while the inputs are not there: what the
// kernels in front read waits behind them.
template <typename T, int kSlots, bool kWritesSums>
__device__ __forceinline__ void fetch_weight(const Parameters<T>& p, uint32_t shared, Barriers barriers) {
  const int half_rows = p.division.half_rows, stage_size = stage_bytes(half_rows, kSlots);
  const auto half_bytes = static_cast<uint32_t>(half_rows * kRowBytes);
  const uint64_t once = read_once_policy();
  Stages arriving{p.division.stages, -p.division.on_the_way};  // nothing to wait for before the first one
  for_each_step<kWritesSums>(p, barriers, [&](int row, int column, int stage) {
    if (arriving.stage >= 0) wait_barrier(barriers.has_weight(arriving.stage), arriving.parity);
    arriving.advance();
    const uint32_t full = barriers.has_weight(stage), to = shared + static_cast<uint32_t>(stage * stage_size);
    arrive_expecting(full, 2 * half_bytes);
    copy_tensor(to, &p.weight, column, row, 0, full, once);
    copy_tensor(to + half_bytes, &p.weight, column, row + p.to_second, 0, full, once);
  });
}

// Another thread's.
template <typename T, int kSlots, bool kWritesSums>
__device__ __forceinline__ void fetch_x(const Parameters<T>& p, uint32_t shared, Barriers barriers) {
  const int half_rows = p.division.half_rows, stage_size = stage_bytes(half_rows, kSlots);
  wait_for_inputs();
  let_next_start();
  for_each_step<kWritesSums>(p, barriers, [&](int, int column, int stage) {
    const uint32_t full = barriers.has_x(stage);
    const int to = stage * stage_size + weight_bytes(half_rows);
    arrive_expecting(full, kSlots * kRowBytes);
    copy_tensor(shared + static_cast<uint32_t>(to), &p.x, column, 0, 0, full);
  });
}

// sums[h]: of row lane / 4 and the one eight on of the warp's 16 in half `first_half` + h of a unit, rows of
// x 8 j + 2 (lane % 4) and the next one at 4 j. From registers, so that the next unit is on its way
// meanwhile.
template <typename T, int kSlots, int kHalves>
__device__ __forceinline__ void write(const Parameters<T>& p, int first_output, int first_half, int first_row,
                                      const float (&sums)[kHalves][kSlots / 2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  if (first_row >= p.division.half_rows) return;
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    const int first = first_output + (first_half + half) * p.division.half_rows + first_row;
    float biases[2] = {};  // of the lane's rows
    bool is_there[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      is_there[r] = first_row + 8 * r < p.division.half_rows && first + 8 * r < p.n;
      if (p.bias != nullptr && is_there[r]) biases[r] = __ldg(p.bias + first + 8 * r + g);
    }
    if (p.out_is_fp32) {
      float* out = static_cast<float*>(p.out) + first + g;
#pragma unroll
      for (int i = 0; i < kSlots / 2; ++i) {
        const int row = i / 4 * 8 + 2 * t + i % 2, r = i % 4 / 2;
        if (is_there[r] && row < p.m) out[row * p.out_stride + 8 * r] = sums[half][i] + biases[r];
      }
      continue;
    }
    T* out = static_cast<T*>(p.out) + first;
    const int to = t % 2 * 8;
#pragma unroll
    for (int j = 0; j < kSlots / 8; j += 2) {
      if (8 * j >= p.m) break;
      uint32_t words[4];  // eight outputs of either eight rows of x: two blocks of eight each
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 4 * j + 2 * i;
        words[i] = transposed(pack<T>(sums[half][at] + biases[i % 2], sums[half][at + 1] + biases[i % 2]));
      }
      const uint4 eight = gather_block(words[0], words[1], words[2], words[3], t);
      const int row = 8 * (j + t / 2) + g;
      if (row < p.m && (t % 2 == 0 ? is_there[0] : is_there[1]))
        *reinterpret_cast<uint4*>(out + static_cast<int64_t>(row) * p.out_stride + to) = eight;
    }
  }
}

// The sums of a block to its shared memory.
template <int kSlots, int kHalves>
__device__ __forceinline__ void keep_sums(float* kept, int half_rows, int first_half, int first_row,
                                          const float (&sums)[kHalves][kSlots / 2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  if (first_row >= half_rows) return;
  kept += 2 * t * sums_stride(half_rows) + first_half * half_rows + first_row + g;
  const bool has_eight_more = first_row + 8 < half_rows;
#pragma unroll
  for (int i = 0; i < kSlots / 2; ++i) {
    if (i % 4 / 2 == 1 && !has_eight_more) continue;
    float* place = kept + (i / 4 * 8 + i % 2) * sums_stride(half_rows) + i % 4 / 2 * 8;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) place[half * half_rows] = sums[half][i];
  }
}

// Four sums at the same place of all blocks of the cluster, or of this block alone, added, with the bias.
template <bool kShared>
__device__ __forceinline__ float4 sum_of_blocks(const float* place, int blocks, const float* bias) {
  float4 sum =
      bias != nullptr ? float4{__ldg(bias), __ldg(bias + 1), __ldg(bias + 2), __ldg(bias + 3)} : float4{};
  const auto add = [&](const float4& x) {
    sum.x += x.x;
    sum.y += x.y;
    sum.z += x.z;
    sum.w += x.w;
  };
  if constexpr (!kShared) {
    add(*reinterpret_cast<const float4*>(place));
  } else {
    float4 x[kMaxClusterBlocks];
#pragma unroll
    for (int b = 0; b < kMaxClusterBlocks; ++b)
      x[b] = b < blocks ? cluster::load4(cluster::address_of(place, b)) : float4{};
#pragma unroll
    for (const float4& of_block : x) add(of_block);
  }
  return sum;
}

// What the blocks of the cluster have kept, of the rows of x that are this block's.
template <typename T, bool kGated, bool kShared>
__device__ __forceinline__ void write_kept(const Parameters<T>& p, int first_output, int rank,
                                           const float* kept) {
  const int half_rows = p.division.half_rows, blocks = kShared ? p.division.cluster_blocks : 1;
  const int fours = p.outputs / 4, rows = (p.m - rank + blocks - 1) / blocks;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) - kFetchers; i < rows * fours; i += kConsumers) {
    const int row = rank + i / fours * blocks, in_unit = i % fours * 4, output = first_output + in_unit;
    if (output >= p.n) continue;
    const float* place = kept + row * sums_stride(half_rows) + in_unit;
    const float* bias = p.bias != nullptr ? p.bias + output : nullptr;
    float4 x = sum_of_blocks<kShared>(place, blocks, bias);
    if constexpr (kGated) {
      const float4 up =
          sum_of_blocks<kShared>(place + half_rows, blocks, bias != nullptr ? bias + p.n : nullptr);
      dispatch_activation(p.activation, [&](auto kind) {
        const auto combine = [](float a, float b) {
          return activate_gated<decltype(kind)::value>(to_float(from_float<T>(a)),
                                                       to_float(from_float<T>(b)));
        };
        x = {combine(x.x, up.x), combine(x.y, up.y), combine(x.z, up.z), combine(x.w, up.w)};
      });
    }
    const int64_t at = row * p.out_stride + output;
    if (p.out_is_fp32) {
      *reinterpret_cast<float4*>(static_cast<float*>(p.out) + at) = x;
    } else {
      *reinterpret_cast<uint2*>(static_cast<T*>(p.out) + at) = {pack<T>(x.x, x.y), pack<T>(x.z, x.w)};
    }
  }
}

template <typename T, int kSlots, bool kGated, int kHalves, bool kShared>
__device__ __forceinline__ void multiply(const Parameters<T>& p, uint32_t shared, Barriers barriers,
                                         float* kept) {
  const int warpgroup = static_cast<int>(threadIdx.x) / 128 - 1,
            warp = static_cast<int>(threadIdx.x) % 128 / 32;
  const int first_half = kHalves == 1 ? warpgroup : 0;
  const int first_row = (kHalves == 1 ? 0 : warpgroup * 64) + warp * 16;  // of any half that it has
  const Share share(p);
  const int half_rows = p.division.half_rows, stage_size = stage_bytes(half_rows, kSlots);
  Stages ring{p.division.stages};
  float sums[kHalves][kSlots / 2];
  const auto hold_sums = [&] {
    for (auto& half : sums) hold(half);
  };
  const auto release = [&](int stage) {
    if (threadIdx.x % 32 == 0) arrive(barriers.empty(stage));
  };
  // Enqueues the products of a stage; `adds` is 0 for a unit's first. Where half a unit has fewer rows than
  // are multiplied, what lies behind it is, and nothing comes of that.
  const auto multiply_stage = [&](int adds) {
    wait_barrier(barriers.has_weight(ring.stage), ring.parity);
    wait_barrier(barriers.has_x(ring.stage), ring.parity);
    const uint32_t at = shared + static_cast<uint32_t>(ring.stage * stage_size);
    const int taken = warpgroup * (kHalves == 1 ? half_rows : 64);  // by the other one
    const uint64_t first =
        matrix_descriptor(at + static_cast<uint32_t>(taken * kRowBytes), 16, 8 * kRowBytes);
    const uint64_t second = advanced(first, static_cast<uint32_t>(half_rows * kRowBytes));
    const uint64_t x =
        matrix_descriptor(at + static_cast<uint32_t>(weight_bytes(half_rows)), 16, 8 * kRowBytes);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kDepth / 16; ++i) {
      const auto bytes = static_cast<uint32_t>(i * 32);
      wgmma_rows<T>(sums[0], advanced(first, bytes), advanced(x, bytes), i > 0 ? 1 : adds);
      if constexpr (kHalves == 2)
        wgmma_rows<T>(sums[1], advanced(second, bytes), advanced(x, bytes), i > 0 ? 1 : adds);
    }
    wgmma_commit();
  };
  for (int unit = 0; unit < share.num_units; ++unit) {
    hold_sums();
    multiply_stage(0);
    for (int i = 1; i < share.num_steps; ++i) {
      const int before = ring.stage;
      ring.advance();
      multiply_stage(1);
      wgmma_wait<1>();
      release(before);
    }
    wgmma_wait<0>();
    hold_sums();
    release(ring.stage);
    ring.advance();
    const int first_output = share.first_output(p, unit);
    if constexpr (!kGated && !kShared) {
      write<T, kSlots>(p, first_output, first_half, first_row, sums);
      continue;
    }
    sync_threads<256>(1);  // the other warpgroup has multiplied too
    keep_sums<kSlots>(kept, half_rows, first_half, first_row, sums);
    if constexpr (kShared) {
      cluster::arrive();
      cluster::wait();
    } else {
      sync_threads<256>(1);
    }
    write_kept<T, kGated, kShared>(p, first_output, share.rank, kept);
    if constexpr (kShared) {  // the others may still read what is here
      cluster::arrive();
      cluster::wait();
    } else {
      __syncwarp();
      fence_for_async();
      if (threadIdx.x % 32 == 0) arrive(barriers.written());
    }
  }
}

#endif

// kHalves: halves_of_warpgroup(p.division.half_rows). kShared: a unit is a cluster's of several blocks. Code
// that a launch does not run makes it slower all the same, in steps half a microsecond: so these are several
// kernels.
template <typename T, int kSlots, bool kGated, int kHalves, bool kShared>
__global__ void __launch_bounds__(65536 / kRegisters / 128 * 128, 1)
    linear_wgmma_kernel(const __grid_constant__ Parameters<T> p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ std::byte unaligned[];
  std::byte* aligned = unaligned + (kAlignment - shared_address(unaligned) % kAlignment) % kAlignment;
  std::byte* stages = aligned + kBarrierBytes;
  const Barriers barriers{shared_address(aligned)};
  if (threadIdx.x == 0) {
    for (int i = 0; i < p.division.stages; ++i) {
      init_barrier(barriers.has_weight(i), 1);
      init_barrier(barriers.has_x(i), 1);
      init_barrier(barriers.empty(i), kConsumers / 32);
    }
    init_barrier(barriers.written(), kConsumers / 32);
    fence_for_async();
    prefetch_map(&p.weight);
    prefetch_map(&p.x);
  }
  __syncthreads();
  if (threadIdx.x < kFetchers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegistersToFetch));
    if (threadIdx.x == 0) fetch_weight<T, kSlots, kGated>(p, shared_address(stages), barriers);
    if (threadIdx.x == 32) fetch_x<T, kSlots, kGated>(p, shared_address(stages), barriers);
    __syncwarp();
    if constexpr (kShared) {  // as those who multiply
      for (int i = 0; i < 2; ++i) {
        cluster::arrive();
        cluster::wait();
      }
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegistersToMultiply));
    wait_for_inputs();
    let_next_start();
    multiply<T, kSlots, kGated, kHalves, kShared>(p, shared_address(stages), barriers,
                                                  reinterpret_cast<float*>(stages));
  }
#endif
}

}  // namespace quire::cuda::wgmma_linear
