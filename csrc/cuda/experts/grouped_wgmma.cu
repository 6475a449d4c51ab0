// A persistent, warp-specialised product of each expert's tokens with its weights.
//
// A tile is 256 rows of an expert's weight, of which 128 are the gate's and 128 up's where the product is
// gated, by an item's slots, 16 to 128. The rows of the weight are what the tensor cores take 64 of at least,
// so that few slots cost no more than there are. A warp sends for the rows of both, 64 columns a stage, by
// tensor copies. The slots' rows lie together; those of up to 16 may lie where the tokens' do, then each has
// a copy of its own, by a lane of its own. Of more that takes longer than to spread them first. Two
// warpgroups multiply 64 rows of either half each, so that a thread has the gate's and up's of an output. All
// tiles of an expert with the same rows of the weight follow each other, so that these come from the L2 cache
// after the first.
//
// Where the plan is there already, with slots that lie together, the weights of a block's first stages are on
// their way before the kernel in front has ended.
#include "experts/grouped_wgmma.h"

#include <algorithm>

#include "common/dependent_launch.cuh"
#include "common/fragments.cuh"
#include "common/hopper.cuh"
#include "common/tensor_map.h"
#include "common/weight_stream.cuh"

namespace quire::cuda {
namespace {

constexpr int kRows = 256, kHalfRows = kRows / 2;  // of the weight, of a tile
constexpr int kDepth = 64;  // of a stage: 128 bytes of each row, which is what a swizzle atom has
[[maybe_unused]] constexpr int kThreads = 384, kConsumerWarps = 8;
constexpr int kRowBytes = kDepth * 2;
constexpr int kMostSlots = 128;  // of an item: an expert with more tokens has several
constexpr int kWeightBytes = kRows * kRowBytes;
constexpr int kAlignment = 1024;

template <int kSlots>
constexpr int kStageBytes = kWeightBytes + kSlots * kRowBytes;
// As many as there is room for.
template <int kSlots>
constexpr int kStages = kSlots > 96   ? 4
                        : kSlots > 32 ? 5
                                      : 6;
template <int kSlots>
constexpr int kSharedBytes = kStages<kSlots> * (kStageBytes<kSlots> + 2 * 8) + kAlignment;

// Of a tile.
template <bool kGated>
constexpr int kOutputs = kGated ? kHalfRows : kRows;

template <int kSlots, bool kGated>
constexpr bool kGathers = kGated && kSlots <= 16;

template <typename T>
struct Parameters {
  ExpertProduct<T> product;
  CUtensorMap weights;  // boxes of a matrix's rows of a tile
  CUtensorMap x;        // of an item's slots, or a token
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int kStages>
struct Barriers {
  uint32_t base;
  __device__ uint32_t full(int stage) const { return base + static_cast<uint32_t>(stage) * 8; }
  __device__ uint32_t empty(int stage) const { return full(kStages + stage); }
};

struct Tile {
  int expert, first_slot, count, first_output;
};

// Past the L1 cache, where the plan of a layer before may be: the kernel in front may still run.
__device__ __forceinline__ ExpertItem load_item(const ExpertPlan& plan, int item) {
  return __builtin_bit_cast(ExpertItem, __ldcg(reinterpret_cast<const int4*>(plan.items + item)));
}

// The block's next tile; false when there is none. Called by all with the same numbers. Where an expert has
// one item there is one thing to load.
template <typename T, bool kGated>
__device__ __forceinline__ bool find_tile(const ExpertProduct<T>& p, int index, Tile& tile) {
  const int columns = (p.n + kOutputs<kGated> - 1) / kOutputs<kGated>;
  const int any = index / columns;
  if (any >= p.plan.max_items) return false;
  ExpertItem item = load_item(p.plan, any);
  if (item.expert < 0) return false;
  // Of the expert of this item are all tiles from that of its first item on.
  const int first_item = any - item.index, in_expert = index - first_item * columns;
  const int column = in_expert / item.of, wanted = in_expert % item.of;
  if (wanted != item.index) item = load_item(p.plan, first_item + wanted);
  tile = {item.expert, item.first_slot, item.count, column * kOutputs<kGated>};
  return true;
}

// A warp's work: sends for a tile's stages, one after the other.
template <typename T, int kSlots, bool kGated>
class Fetcher {
 public:
  __device__ Fetcher(const Parameters<T>& all, uint32_t shared, Barriers<kStages<kSlots>> barriers)
      : all_(all), shared_(shared), barriers_(barriers), lane_(static_cast<int>(threadIdx.x)) {
    find(static_cast<int>(blockIdx.x));
  }
  __device__ bool has_stage() const { return has_tile_; }
  __device__ void advance() {
    depth_ += kDepth;
    if (depth_ >= all_.product.k) find(index_ + static_cast<int>(gridDim.x));
  }
  __device__ void send_weights(int stage) const {
    const uint32_t full = barriers_.full(stage), to = place(stage);
    if (lane_ == 0) {
      arrive_expecting(full, static_cast<uint32_t>(kWeightBytes + num_rows() * kRowBytes));
      copy_weights(to, tile_.first_output, full);
      if constexpr (kGated) copy_weights(to + kWeightBytes / 2, all_.product.n + tile_.first_output, full);
    }
    __syncwarp();
  }
  __device__ void send_slots(int stage) const {
    const uint32_t full = barriers_.full(stage), to = place(stage) + kWeightBytes;
    if constexpr (kGathers<kSlots, kGated>) {
      if (lane_ < tile_.count)
        copy_tensor(to + static_cast<uint32_t>(lane_ * kRowBytes), &all_.x, depth_, token_, 0, full);
    } else {
      if (lane_ == 0) copy_tensor(to, &all_.x, depth_, tile_.first_slot, 0, full);
    }
  }

 private:
  __device__ uint32_t place(int stage) const {
    return shared_ + static_cast<uint32_t>(stage * kStageBytes<kSlots>);
  }
  // Where experts have several items, the next tile wants the same rows.
  __device__ void copy_weights(uint32_t to, int row, uint32_t full) const {
    if constexpr (kSlots < kMostSlots) {
      copy_tensor(to, &all_.weights, depth_, row, tile_.expert, full, once_);
    } else {
      copy_tensor(to, &all_.weights, depth_, row, tile_.expert, full);
    }
  }
  // Of slots, that come to a stage.
  __device__ int num_rows() const { return kGathers<kSlots, kGated> ? tile_.count : kSlots; }
  __device__ void find(int index) {
    index_ = index;
    depth_ = 0;
    has_tile_ = find_tile<T, kGated>(all_.product, index, tile_);
    if constexpr (kGathers<kSlots, kGated>) {
      if (has_tile_ && lane_ < tile_.count)
        token_ = __ldcg(all_.product.plan.token + tile_.first_slot + lane_);
    }
  }

  const Parameters<T>& all_;
  uint32_t shared_;
  Barriers<kStages<kSlots>> barriers_;
  int lane_;
  Tile tile_;
  uint64_t once_ = read_once_policy();
  int index_, depth_, token_ = 0;  // this lane's
  bool has_tile_;
};

template <typename T, int kSlots, bool kGated>
__device__ __forceinline__ void fetch(const Parameters<T>& all, uint32_t shared,
                                      Barriers<kStages<kSlots>> barriers) {
  using Stages = Fetcher<T, kSlots, kGated>;
  int early = 0;
  if constexpr (!kGathers<kSlots, kGated>) {
    for (Stages stages(all, shared, barriers); stages.has_stage() && early < kStages<kSlots>; ++early) {
      stages.send_weights(early);
      stages.advance();
    }
  }
  wait_for_inputs();
  let_next_start();
  Ring<kStages<kSlots>> ring;
  int i = 0;
  for (Stages stages(all, shared, barriers); stages.has_stage(); stages.advance(), ++i) {
    if (i >= early) {
      wait_barrier(barriers.empty(ring.stage), ring.parity ^ 1);
      stages.send_weights(ring.stage);
    }
    stages.send_slots(ring.stage);
    ring.advance();
  }
}

// sums[h]: of row lane / 4 and the one eight on of the warp's 16 in half h of the tile, slots 8 j + 2 (lane %
// 4) and the next one at 4 j. combine(gate, up) is what is written where the product is gated.
template <typename T, int kSlots, bool kGated, typename F>
__device__ __forceinline__ void write(const ExpertProduct<T>& p, const Tile& tile,
                                      const float (&sums)[2][kSlots / 2], int first_row, F combine) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  const float* bias = p.bias_of(tile.expert, kGated);
#pragma unroll
  for (int half = 0; half < (kGated ? 1 : 2); ++half) {
    const int first = tile.first_output + half * kHalfRows + first_row;
    float biases[2][2] = {};  // of the rows; of the gate's and up's
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int output = first + g + 8 * r;
      if (bias == nullptr || output >= p.n) continue;
      biases[r][0] = __ldg(bias + output);
      if constexpr (kGated) biases[r][1] = __ldg(bias + p.n + output);
    }
    T* out = p.out + static_cast<int64_t>(tile.first_slot) * p.n + first;
#pragma unroll
    for (int j = 0; j < kSlots / 8; j += 2) {
      if (8 * j >= tile.count) break;
      uint32_t words[4];  // eight slots' outputs: two blocks of eight of either eight slots
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 4 * j + 2 * i, r = i % 2;
        float value[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          value[c] = sums[half][at + c] + biases[r][0];
          if constexpr (kGated) value[c] = combine(value[c], sums[1][at + c] + biases[r][1]);
        }
        words[i] = transposed(pack<T>(value[0], value[1]));
      }
      const uint4 eight = gather_block(words[0], words[1], words[2], words[3], t);
      const int slot = 8 * (j + t / 2) + g, to = t % 2 * 8;
      if (slot < tile.count && first + to < p.n)
        *reinterpret_cast<uint4*>(out + static_cast<int64_t>(slot) * p.n + to) = eight;
    }
  }
}

template <typename T, int kSlots, bool kGated>
__device__ __forceinline__ void multiply(const ExpertProduct<T>& p, uint32_t shared,
                                         Barriers<kStages<kSlots>> barriers) {
  const int warpgroup = static_cast<int>(threadIdx.x) / 128 - 1,
            warp = static_cast<int>(threadIdx.x) % 128 / 32;
  const int stages = (p.k + kDepth - 1) / kDepth;
  Ring<kStages<kSlots>> ring;
  float sums[2][kSlots / 2];
  const auto hold_sums = [&] {
    hold(sums[0]);
    hold(sums[1]);
  };
  const auto release = [&](int stage) {
    if (threadIdx.x % 32 == 0) arrive(barriers.empty(stage));
  };
  // Enqueues the products of a stage; `adds` is 0 for a tile's first.
  const auto multiply_stage = [&](int adds) {
    wait_barrier(barriers.full(ring.stage), ring.parity);
    const uint32_t at = shared + static_cast<uint32_t>(ring.stage * kStageBytes<kSlots>);
    const uint64_t rows =
        matrix_descriptor(at + static_cast<uint32_t>(warpgroup * 64 * kRowBytes), 16, 8 * kRowBytes);
    const uint64_t slots = matrix_descriptor(at + kWeightBytes, 16, 8 * kRowBytes);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kDepth / 16; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto bytes = static_cast<uint32_t>(i * 32);
        wgmma_rows<T>(sums[half], advanced(rows, bytes + static_cast<uint32_t>(half * kHalfRows * kRowBytes)),
                      advanced(slots, bytes), i > 0 ? 1 : adds);
      }
    }
    wgmma_commit();
  };
  Tile tile;
  for (int index = static_cast<int>(blockIdx.x); find_tile<T, kGated>(p, index, tile);
       index += static_cast<int>(gridDim.x)) {
    hold_sums();
    multiply_stage(0);
    for (int i = 1; i < stages; ++i) {
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
    const int first_row = warpgroup * 64 + warp * 16;
    if constexpr (kGated) {
      dispatch_activation(p.activation, [&](auto kind) {
        write<T, kSlots, true>(p, tile, sums, first_row, [](float gate, float up) {
          return activate_gated<decltype(kind)::value>(gate, up);
        });
      });
    } else {
      write<T, kSlots, false>(p, tile, sums, first_row, [](float, float) {});
    }
  }
}

#endif

template <typename T, int kSlots, bool kGated>
__global__ void __launch_bounds__(kThreads, 1)
    grouped_wgmma_kernel(const __grid_constant__ Parameters<T> all) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ std::byte unaligned[];
  constexpr int kNumStages = kStages<kSlots>;
  const uint32_t start = shared_address(unaligned);
  const uint32_t shared = (start + kAlignment - 1) / kAlignment * kAlignment;
  const Barriers<kNumStages> barriers{shared + kNumStages * kStageBytes<kSlots>};
  if (threadIdx.x == 0) {
    for (int i = 0; i < kNumStages; ++i) {
      init_barrier(barriers.full(i), 1);
      init_barrier(barriers.empty(i), kConsumerWarps);
    }
    fence_for_async();
    prefetch_map(&all.weights);
    prefetch_map(&all.x);
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;\n");
    if (threadIdx.x < 32) fetch<T, kSlots, kGated>(all, shared, barriers);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;\n");
    wait_for_inputs();
    let_next_start();
    multiply<T, kSlots, kGated>(all.product, shared, barriers);
  }
#endif
}

template <typename T, int kSlots, bool kGated>
void launch(const LaunchContext& ctx, const ExpertProduct<T>& p, int num_experts) {
  constexpr auto kernel = grouped_wgmma_kernel<T, kSlots, kGated>;
  static std::atomic<uint64_t> prepared{0};
  const cudaError_t error =
      allow_shared_bytes(prepared, reinterpret_cast<const void*>(kernel), kSharedBytes<kSlots>);
  if (error != cudaSuccess) return note_error(ctx, "grouped_wgmma", "", cudaGetErrorString(error));
  constexpr bool kIsBf16 = std::is_same_v<T, bf16>;
  Parameters<T> all{};
  all.product = p;
  const int64_t row_bytes = int64_t{p.k} * 2;
  if (!make_tensor_map(all.weights, p.weight, kIsBf16, p.k, int64_t{p.n} * (kGated ? 2 : 1), row_bytes,
                       num_experts, p.weight_stride * 2, {kOutputs<kGated>}) ||
      !make_tensor_map(all.x, p.x, kIsBf16, p.k, p.x_rows, p.x_stride * 2, 1, 0,
                       {kGathers<kSlots, kGated> ? 1 : kSlots}))
    return note_error(ctx, "grouped_wgmma", "", "the driver makes no tensor map of it");
  const int64_t tiles = int64_t{p.plan.max_items} * ceil_div(p.n, kOutputs<kGated>);
  const auto grid = static_cast<unsigned>(std::min<int64_t>(tiles, device_limits().num_sms));
  launch_dependent(ctx, kernel, grid, kThreads, kSharedBytes<kSlots>, all);
  check_launch(ctx, "grouped_wgmma", "[%d items of %d, %d] x %d", p.plan.max_items, kSlots, p.k, p.n);
}

template <typename T, int kSlots>
void launch(const LaunchContext& ctx, const ExpertProduct<T>& p, int num_experts, bool is_gated) {
  is_gated ? launch<T, kSlots, true>(ctx, p, num_experts) : launch<T, kSlots, false>(ctx, p, num_experts);
}

}  // namespace

bool has_grouped_wgmma() {
  const DeviceLimits& limits = device_limits();
  const int bytes = std::max({kSharedBytes<32>, kSharedBytes<96>, kSharedBytes<kMostSlots>});
  return limits.compute_capability / 10 == 9 && shared_memory_fits(bytes, limits.max_shared_bytes_per_block);
}

int wgmma_item_slots(int64_t choices, int num_experts) {
  // Four deviations more than the mean of choices that are independent: an expert that has more reads its
  // weights again, from the L2 cache.
  const int64_t mean = ceil_div<int64_t>(choices, num_experts);
  for (const int slots : {16, 32, 64, 96}) {
    if (slots >= mean && (slots - mean) * (slots - mean) >= 16 * mean) return slots;
  }
  return kMostSlots;
}

bool wgmma_gathers(int item_slots) { return item_slots <= 16; }

template <typename T>
void multiply_grouped_wgmma(const LaunchContext& ctx, const ExpertProduct<T>& product, int num_experts,
                            bool is_gated) {
  switch (product.plan.item_slots) {
    case 16: return launch<T, 16>(ctx, product, num_experts, is_gated);
    case 32: return launch<T, 32>(ctx, product, num_experts, is_gated);
    case 64: return launch<T, 64>(ctx, product, num_experts, is_gated);
    case 96: return launch<T, 96>(ctx, product, num_experts, is_gated);
    default: return launch<T, kMostSlots>(ctx, product, num_experts, is_gated);
  }
}

template void multiply_grouped_wgmma(const LaunchContext&, const ExpertProduct<bf16>&, int, bool);
template void multiply_grouped_wgmma(const LaunchContext&, const ExpertProduct<fp16>&, int, bool);

}  // namespace quire::cuda
