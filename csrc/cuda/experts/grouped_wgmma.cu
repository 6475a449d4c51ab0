// A persistent, warp-specialised product of each expert's tokens with its weights.
//
// A tile is an item's 128 slots by 256 rows of the weight: of these, 128 are the gate's and 128 up's where
// the product is gated, so that a thread has both of an output. Warpgroup 0 sends for the rows of both, 64
// columns a stage, by tensor copies, which is why the slots' rows lie together: gathering them from where the
// tokens lie, by ordinary asynchronous copies, was measured to be slower than to spread them first.
// Warpgroups 1 and 2 multiply 64 slots each; one that has none only keeps step. All tiles of an expert with
// the same rows of the weight follow each other, so that these come from the L2 cache after the first.
#include "experts/grouped_wgmma.h"

#include <algorithm>

#include "common/hopper.cuh"
#include "common/launch.h"
#include "common/tensor_map.h"

namespace quire::cuda {
namespace {

constexpr int kSlots = kWgmmaItemSlots;
constexpr int kRows = 256;  // of the weight, of a tile
constexpr int kDepth = 64;  // of a stage: 128 bytes of each row, which is what a swizzle atom has
constexpr int kStages = 4;
[[maybe_unused]] constexpr int kThreads = 384, kConsumerWarps = 8;
constexpr int kRowBytes = kDepth * 2;
constexpr int kSlotBytes = kSlots * kRowBytes, kWeightBytes = kRows * kRowBytes;
constexpr int kStageBytes = kSlotBytes + kWeightBytes;
constexpr int kAlignment = 1024;
constexpr int kSharedBytes = kStages * kStageBytes + 2 * kStages * 8 + kAlignment;

template <bool kGated>
constexpr int kOutputs = kGated ? kRows / 2 : kRows;  // columns of a tile

template <typename T>
struct Parameters {
  ExpertProduct<T> product;
  CUtensorMap weights;  // boxes of a matrix's rows of a tile
  CUtensorMap slots;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

struct Barriers {
  uint32_t base;
  __device__ uint32_t full(int stage) const { return base + static_cast<uint32_t>(stage) * 8; }
  __device__ uint32_t empty(int stage) const { return full(kStages + stage); }
};

struct Tile {
  int expert, first_slot, count, first_output;
};

// The block's next tile; false when there is none. Called by all with the same numbers.
template <typename T, bool kGated>
__device__ __forceinline__ bool find_tile(const ExpertProduct<T>& p, int index, Tile& tile) {
  const int columns = (p.n + kOutputs<kGated> - 1) / kOutputs<kGated>;
  if (index >= __ldg(p.plan.num_items) * columns) return false;
  // Of the expert of this item are all tiles from that of its first item on.
  const int any = index / columns, first_item = __ldg(p.plan.item_group + any);
  const int in_expert = index - first_item * columns, items = __ldg(p.plan.item_group_size + any);
  const int item = first_item + in_expert % items;
  tile.expert = __ldg(p.plan.item_expert + item);
  tile.first_slot = __ldg(p.plan.item_first + item);
  tile.count = __ldg(p.plan.item_count + item);
  tile.first_output = in_expert / items * kOutputs<kGated>;
  return true;
}

// One thread's work.
template <typename T, bool kGated>
__device__ __forceinline__ void fetch(const Parameters<T>& all, uint32_t shared, Barriers barriers) {
  const ExpertProduct<T>& p = all.product;
  Ring<kStages> ring;
  Tile tile;
  for (int index = static_cast<int>(blockIdx.x); find_tile<T, kGated>(p, index, tile);
       index += static_cast<int>(gridDim.x)) {
    for (int depth = 0; depth < p.k; depth += kDepth) {
      wait_barrier(barriers.empty(ring.stage), ring.parity ^ 1);
      const uint32_t full = barriers.full(ring.stage);
      const uint32_t to = shared + static_cast<uint32_t>(ring.stage * kStageBytes);
      arrive_expecting(full, kStageBytes);
      copy_tensor(to, &all.slots, depth, tile.first_slot, 0, full);
      copy_tensor(to + kSlotBytes, &all.weights, depth, tile.first_output, tile.expert, full);
      if constexpr (kGated) {
        copy_tensor(to + kSlotBytes + kWeightBytes / 2, &all.weights, depth, p.n + tile.first_output,
                    tile.expert, full);
      }
      ring.advance();
    }
  }
}

// Four words of a lane, of blocks of eight columns: lane t of four has columns 2 t and 2 t + 1 of each. After
// this it has all of block t.
__device__ __forceinline__ uint4 gather_block(uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3, int t) {
  constexpr uint32_t kAll = 0xFFFFFFFFU;
  const bool upper = (t & 2) != 0, odd = (t & 1) != 0;
  // With the lane two away: the lower two keep blocks 0 and 1, the upper two 2 and 3.
  const uint32_t from0 = __shfl_xor_sync(kAll, upper ? w0 : w2, 2);
  const uint32_t from1 = __shfl_xor_sync(kAll, upper ? w1 : w3, 2);
  const uint32_t a_low = upper ? from0 : w0, b_low = upper ? from1 : w1;    // columns of lanes 0 and 1
  const uint32_t a_high = upper ? w2 : from0, b_high = upper ? w3 : from1;  // of lanes 2 and 3
  // With the neighbour: even lanes keep the first of the two blocks.
  const uint32_t low = __shfl_xor_sync(kAll, odd ? a_low : b_low, 1);
  const uint32_t high = __shfl_xor_sync(kAll, odd ? a_high : b_high, 1);
  return odd ? uint4{low, b_low, high, b_high} : uint4{a_low, low, a_high, high};
}

// combine(sum, sum 128 rows on) is what is written where the product is gated.
template <typename T, bool kGated, typename F>
__device__ __forceinline__ void write(const ExpertProduct<T>& p, const Tile& tile, float (&sums)[128],
                                      int warpgroup, int thread, F combine) {
  const int lane = thread % 32, t = lane % 4;
  const float* bias = p.bias_of(tile.expert, kGated);
  constexpr int kBlocks = kOutputs<kGated> / 8;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = warpgroup * 64 + thread / 32 * 16 + lane / 4 + 8 * r;
    T* out = p.out + static_cast<int64_t>(tile.first_slot + row) * p.n + tile.first_output;
#pragma unroll
    for (int group = 0; group < kBlocks; group += 4) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int block = group + i, column = tile.first_output + block * 8 + 2 * t;
        float value[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int at = block * 4 + 2 * r + c;
          const bool biased = bias != nullptr && column < p.n;
          value[c] = sums[at] + (biased ? __ldg(bias + column + c) : 0.0F);
          if constexpr (kGated) {
            const float up = sums[at + 64] + (biased ? __ldg(bias + p.n + column + c) : 0.0F);
            value[c] = combine(value[c], up);
          }
        }
        words[i] = pack<T>(value[0], value[1]);
      }
      const uint4 eight = gather_block(words[0], words[1], words[2], words[3], t);
      const int to = (group + t) * 8;
      if (row < tile.count && tile.first_output + to < p.n) *reinterpret_cast<uint4*>(out + to) = eight;
    }
  }
}

template <typename T, bool kGated>
__device__ __forceinline__ void multiply(const ExpertProduct<T>& p, uint32_t shared, Barriers barriers) {
  const int warpgroup = static_cast<int>(threadIdx.x) / 128 - 1, thread = static_cast<int>(threadIdx.x) % 128;
  const int stages = (p.k + kDepth - 1) / kDepth;
  Ring<kStages> ring;
  float sums[128];
  const auto release = [&](int stage) {
    if (thread % 32 == 0) arrive(barriers.empty(stage));
  };
  // Enqueues the product of a stage; `adds` is 0 for a tile's first.
  const auto multiply_stage = [&](int adds) {
    wait_barrier(barriers.full(ring.stage), ring.parity);
    const uint32_t at = shared + static_cast<uint32_t>(ring.stage * kStageBytes);
    const uint64_t a =
        matrix_descriptor(at + static_cast<uint32_t>(warpgroup * 64 * kRowBytes), 16, 8 * kRowBytes);
    const uint64_t b = matrix_descriptor(at + kSlotBytes, 16, 8 * kRowBytes);
    wgmma_fence();
    wgmma_rows<T>(sums, a, b, adds);
#pragma unroll
    for (int i = 1; i < kDepth / 16; ++i) {
      const auto bytes = static_cast<uint32_t>(i * 32);
      wgmma_rows<T>(sums, advanced(a, bytes), advanced(b, bytes), 1);
    }
    wgmma_commit();
  };
  Tile tile;
  for (int index = static_cast<int>(blockIdx.x); find_tile<T, kGated>(p, index, tile);
       index += static_cast<int>(gridDim.x)) {
    // Of each warp together, and so that the compiler knows it.
    const int slots = __shfl_sync(0xFFFFFFFFU, tile.count, 0) - warpgroup * 64;
    if (slots <= 0) {
      for (int i = 0; i < stages; ++i) {
        wait_barrier(barriers.full(ring.stage), ring.parity);
        __syncwarp();
        release(ring.stage);
        ring.advance();
      }
      continue;
    }
    hold(sums);
    multiply_stage(0);
    for (int i = 1; i < stages; ++i) {
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
    if constexpr (kGated) {
      dispatch_activation(p.activation, [&](auto kind) {
        write<T, true>(p, tile, sums, warpgroup, thread,
                       [](float gate, float up) { return activate_gated<decltype(kind)::value>(gate, up); });
      });
    } else {
      write<T, false>(p, tile, sums, warpgroup, thread, [](float, float) {});
    }
  }
}

#endif

template <typename T, bool kGated>
__global__ void __launch_bounds__(kThreads, 1)
    grouped_wgmma_kernel(const __grid_constant__ Parameters<T> all) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ std::byte unaligned[];
  const uint32_t start = shared_address(unaligned);
  const uint32_t shared = (start + kAlignment - 1) / kAlignment * kAlignment;
  const Barriers barriers{shared + kStages * kStageBytes};
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      init_barrier(barriers.full(i), 1);
      init_barrier(barriers.empty(i), kConsumerWarps);
    }
    fence_for_async();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;\n");
    if (threadIdx.x == 0) fetch<T, kGated>(all, shared, barriers);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;\n");
    multiply<T, kGated>(all.product, shared, barriers);
  }
#endif
}

template <typename T, bool kGated>
void launch(const LaunchContext& ctx, const ExpertProduct<T>& p, int num_experts) {
  constexpr auto kernel = grouped_wgmma_kernel<T, kGated>;
  static std::atomic<uint64_t> prepared{0};
  const cudaError_t error = allow_shared_bytes(prepared, reinterpret_cast<const void*>(kernel), kSharedBytes);
  if (error != cudaSuccess) return note_error(ctx, "grouped_wgmma", "", cudaGetErrorString(error));
  constexpr bool kIsBf16 = std::is_same_v<T, bf16>;
  Parameters<T> all{};
  all.product = p;
  const int64_t row_bytes = int64_t{p.k} * 2;
  if (!make_tensor_map(all.weights, p.weight, kIsBf16, p.k, int64_t{p.n} * (kGated ? 2 : 1), row_bytes,
                       num_experts, p.weight_stride * 2, kOutputs<kGated>) ||
      !make_tensor_map(all.slots, p.x, kIsBf16, p.k, p.plan.num_slots, p.x_stride * 2, 1, 0, kSlots))
    return note_error(ctx, "grouped_wgmma", "", "the driver makes no tensor map of it");
  const int64_t tiles = int64_t{p.plan.max_items} * ceil_div(p.n, kOutputs<kGated>);
  const auto grid = static_cast<unsigned>(std::min<int64_t>(tiles, device_limits().num_sms));
  kernel<<<grid, kThreads, kSharedBytes, stream_of(ctx)>>>(all);
  check_launch(ctx, "grouped_wgmma", "[%d items, %d] x %d", p.plan.max_items, p.k, p.n);
}

}  // namespace

bool has_grouped_wgmma() {
  const DeviceLimits& limits = device_limits();
  return limits.compute_capability / 10 == 9 &&
         shared_memory_fits(kSharedBytes, limits.max_shared_bytes_per_block);
}

template <typename T>
void multiply_grouped_wgmma(const LaunchContext& ctx, const ExpertProduct<T>& product, int num_experts,
                            bool is_gated) {
  is_gated ? launch<T, true>(ctx, product, num_experts) : launch<T, false>(ctx, product, num_experts);
}

template void multiply_grouped_wgmma(const LaunchContext&, const ExpertProduct<bf16>&, int, bool);
template void multiply_grouped_wgmma(const LaunchContext&, const ExpertProduct<fp16>&, int, bool);

}  // namespace quire::cuda
