// Rows (rows.cuh) on Hopper: copied to shared memory some at a time and multiplied there by wgmma.
//
// Memory is busy with a few tens of KB on their way to each multiprocessor. More is not faster, and all else
// that is read meanwhile waits behind it: the row of a norm, the vector itself. So copies are asked for as
// earlier ones arrive, few at once, while room is kept for many: between two products, when a short kernel
// prepares the vector, the slots fill.
//
// What has come has to be gone through much faster than it came, in few instructions. A slot holds rows as
// they lie in memory, the vector lies beside it, and wgmma takes both as they are: of its first operand, 64 x
// 16 in pieces of 8 x 8 elements, a piece's eight "rows" are eight neighbouring groups of eight elements of
// one row; of its second, 16 x 8, the columns are the vector's groups likewise. Of the product of a piece and
// a piece the diagonal is wanted, where groups meet their own; it adds up in place along the row. Tensor
// cores have time for the rest, as their second operand has eight columns or more anyway.
#pragma once

#include "common/dependent_launch.cuh"
#include "common/hopper.cuh"
#include "common/row_slots_layout.h"
#include "common/types.cuh"

namespace quire::cuda {

namespace row_slots {

constexpr int kMultipliers = 128 * kGroups, kThreads = kMultipliers + 32;

template <typename Rows>
Shape shape_of(const Rows& rows) {
  return {.num_outputs = rows.num_outputs(),
          .rows_of_output = Rows::kRowsOfOutput,
          .segments = rows.segments(),
          .is_segmented = Rows::kSegmented,
          .depth = rows.depth()};
}

// Of a block's shared memory, what a launch divides.
template <typename Rows>
int most_shared_bytes() {
  return device_limits().max_shared_bytes_per_block - static_cast<int>(sizeof(typename Rows::Shared)) -
         kSpareBytes;
}

template <typename Rows, int kRows>
constexpr int kSums = sums_of_row(kRows, Rows::kSegmented);

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Of a block: the outputs it has, and what lies where.
template <typename Rows, int kRows>
struct Block {
  const Rows& rows;
  const typename Rows::Shared& shared;
  const Layout& layout;
  int first, last;  // outputs
  uint32_t memory, barriers;
  static constexpr int kOutputs = kRows / Rows::kRowsOfOutput;  // of a slot

  __device__ uint32_t full(int slot) const { return barriers + 8 * static_cast<uint32_t>(slot); }
  __device__ uint32_t empty(int slot) const { return full(kMaxSlots + slot); }
  __device__ uint32_t has_values() const { return full(2 * kMaxSlots); }
  __device__ uint32_t values(int segment) const {
    return memory + static_cast<uint32_t>(segment * layout.segment_bytes);
  }
  __device__ uint32_t slot(int i) const {
    return values(rows.segments()) + static_cast<uint32_t>(i * layout.slot_bytes);
  }

  // Calls f(output, outputs, segment) for each slot that is filled, in order.
  template <typename F>
  __device__ __forceinline__ void for_each_slot(F f) const {
    int outputs = 0;
    for (int output = first; output < last; output += outputs) {
      outputs = min(min(kOutputs, last - output), rows.run(output));
      for (int s = 0; s < rows.segments(); ++s) f(output, outputs, s);
    }
  }
};

// By one thread.
template <typename Rows, int kRows>
__device__ __forceinline__ void fetch_values(const Block<Rows, kRows>& block) {
  const Rows& rows = block.rows;
  const auto bytes = static_cast<uint32_t>(2 * rows.depth());
  wait_for_inputs();
  arrive_expecting(block.has_values(), bytes * static_cast<uint32_t>(rows.segments()));
  for (int s = 0; s < rows.segments(); ++s)
    copy_bulk(block.values(s), rows.values() + static_cast<int64_t>(s) * rows.depth(), bytes,
              block.has_values());
}

// By another.
template <typename Rows, int kRows>
__device__ __forceinline__ void fill_slots(const Block<Rows, kRows>& block) {
  const Rows& rows = block.rows;
  const Layout& layout = block.layout;
  const auto row_bytes = static_cast<uint32_t>(2 * rows.depth());
  int slot = 0, on_the_way = 0, oldest = 0;
  uint32_t parity = 1, oldest_parity = 0;
  const auto advance = [&](int& i, uint32_t& p) {
    if (++i == layout.num_slots) {
      i = 0;
      p ^= 1;
    }
  };
  block.for_each_slot([&](int output, int outputs, int segment) {
    const int most = is_over(block.has_values(), 0) ? layout.after : layout.before;
    for (; on_the_way >= most; --on_the_way) {
      wait_barrier(block.full(oldest), oldest_parity);
      advance(oldest, oldest_parity);
    }
    wait_barrier(block.empty(slot), parity);
    const uint32_t bytes = static_cast<uint32_t>(outputs) * row_bytes;
    if (rows.weight(block.shared, output, segment, 0) == nullptr) {
      arrive(block.full(slot));
    } else {
      arrive_expecting(block.full(slot), bytes * Rows::kRowsOfOutput);
#pragma unroll
      for (int r = 0; r < Rows::kRowsOfOutput; ++r)
        copy_bulk(block.slot(slot) + static_cast<uint32_t>(r * block.kOutputs) * row_bytes,
                  rows.weight(block.shared, output, segment, r), bytes, block.full(slot));
    }
    ++on_the_way;
    advance(slot, parity);
  });
}

// A slot times a segment's values: of each row's parts the sums of products, on the diagonal of each piece.
template <typename T, int kRegisters>
__device__ __forceinline__ void multiply_slot(float (&sums)[kRegisters], const Layout& layout, uint32_t slot,
                                              uint32_t values) {
  const auto part_bytes = static_cast<uint32_t>(2 * layout.part);
  const uint64_t a = plain_descriptor(slot, kPieceBytes, part_bytes);
  const uint64_t b = plain_descriptor(values, kPieceBytes, part_bytes);
  const int steps = layout.part / kStep;
#pragma unroll
  for (float& sum : sums) sum = 0.0F;
  hold(sums);
  wgmma_fence();
  // As a loop that is not unrolled: with several to a turn, or several sums, it takes half as long again.
#pragma unroll 1
  for (int i = 0; i < steps; ++i)
    wgmma_rows<T>(sums, a + static_cast<uint64_t>(i) * (2 * kPieceBytes >> 4),
                  b + static_cast<uint64_t>(i) * (2 * kPieceBytes >> 4), 1);
  // Half a step is left: its piece twice, which meets the values' last and the zeros behind them.
  if (layout.part % kStep != 0)
    wgmma_rows<T>(sums,
                  plain_descriptor(slot + 2 * kPieceBytes * static_cast<uint32_t>(steps), 0, part_bytes),
                  advanced(b, 2 * kPieceBytes * static_cast<uint32_t>(steps)), 1);
  wgmma_commit();
  wgmma_wait<0>();
  hold(sums);
}

// A warp's two pieces' diagonals, added up, on all lanes that have a part of one.
template <int kRows, int kRegisters>
__device__ __forceinline__ float2 diagonals(const float (&sums)[kRegisters]) {
  constexpr int kParts = 8 / kRows;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
  float v[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int part = (2 * warp + h) % kParts;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      if (i == 0 || i == part) v[h] = lane / 4 % 2 == 0 ? sums[4 * i + 2 * h] : sums[4 * i + 2 * h + 1];
    }
  }
  // Lane 4 i + i / 2 has the i-th element.
#pragma unroll
  for (const int other : {4, 9, 18}) {
    v[0] += __shfl_xor_sync(0xFFFFFFFFU, v[0], other);
    v[1] += __shfl_xor_sync(0xFFFFFFFFU, v[1], other);
  }
  return {v[0], v[1]};
}

template <typename Rows, int kRows>
__device__ __forceinline__ void multiply_slots(const Block<Rows, kRows>& block, float* kept) {
  using T = typename Rows::Element;
  constexpr int kRegisters = 32 / kRows, kRowSums = std::max(1, 4 / kRows);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int group = static_cast<int>(threadIdx.x) / 128;
  // Of sums of output `o` and row `r`.
  const auto place = [&](int o, int r) {
    return ((o - block.first) * Rows::kRowsOfOutput + r) * kSums<Rows, kRows>;
  };
  const auto keep = [&](int output, int outputs, const float (&sums)[kRegisters]) {
    const float2 v = diagonals<kRows>(sums);
    if (lane != 0) return;
    const auto keep_row = [&](int row, float sum) {
      const int o = row % block.kOutputs;
      if (o >= outputs) return;
      float* at = kept + place(output + o, row / block.kOutputs) + warp % kRowSums;
      if constexpr (Rows::kSegmented) {
        at[group * kRowSums] = sum;
      } else {
        *at = sum;
      }
    };
    if constexpr (kRows == 8) {
      keep_row(2 * warp, v.x);
      keep_row(2 * warp + 1, v.y);
    } else {
      keep_row(warp / kRowSums, v.x + v.y);
    }
  };
  // Of the first output that this thread finishes.
  typename Rows::Constants constants{};
  const int first = block.first + static_cast<int>(threadIdx.x);
  if (first < block.last) constants = block.rows.constants(block.shared, first);
  wait_barrier(block.has_values(), 0);
  int slot = 0, turn = 0;
  uint32_t parity = 0;
  float sums[kRegisters] = {}, totals[kRegisters] = {};
  block.for_each_slot([&](int output, int outputs, int segment) {
    if (turn == group) {
      wait_barrier(block.full(slot), parity);
      const bool has_weights =
          !Rows::kSegmented || block.rows.weight(block.shared, output, segment, 0) != nullptr;
      if (has_weights) multiply_slot<T>(sums, block.layout, block.slot(slot), block.values(segment));
      __syncwarp();
      if (lane == 0) arrive(block.empty(slot));
      if constexpr (Rows::kSegmented) {
        const float scale = block.rows.scale(block.shared, segment);
#pragma unroll
        for (int i = 0; i < kRegisters; ++i)
          totals[i] = has_weights ? fmaf(scale, sums[i], totals[i]) : totals[i];
      } else {
        keep(output, outputs, sums);
      }
    }
    if (Rows::kSegmented && segment + 1 == block.rows.segments()) {
      keep(output, outputs, totals);
#pragma unroll
      for (float& total : totals) total = 0.0F;
    }
    if (++turn == kGroups) turn = 0;
    if (++slot == block.layout.num_slots) {
      slot = 0;
      parity ^= 1;
    }
  });
  sync_256(1);
  static_assert(kMultipliers == 256);
  for (int o = first; o < block.last; o += kMultipliers) {
    if (o > first) constants = block.rows.constants(block.shared, o);
    float out[Rows::kRowsOfOutput] = {};
#pragma unroll
    for (int r = 0; r < Rows::kRowsOfOutput; ++r) {
#pragma unroll
      for (int i = 0; i < kSums<Rows, kRows>; ++i) out[r] += kept[place(o, r) + i];
    }
    block.rows.finish(block.shared, o, out, constants);
  }
}

#endif

template <typename Rows, int kRows>
__global__ void __launch_bounds__(kThreads, 1)
    row_slots_kernel(const __grid_constant__ Rows rows, const __grid_constant__ Layout layout) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(128) std::byte memory[];
  __shared__ __align__(8) uint64_t barriers[2 * kMaxSlots + 1];
  __shared__ typename Rows::Shared shared;
  const int thread = static_cast<int>(threadIdx.x);
  const auto first_of = [&rows](unsigned block) {
    return static_cast<int>(static_cast<int64_t>(block) * rows.num_outputs() / gridDim.x);
  };
  const Block<Rows, kRows> block = {.rows = rows,
                                    .shared = shared,
                                    .layout = layout,
                                    .first = first_of(blockIdx.x),
                                    .last = first_of(blockIdx.x + 1),
                                    .memory = shared_address(memory),
                                    .barriers = shared_address(barriers)};
  if (thread == kMultipliers) {
    for (int i = 0; i < layout.num_slots; ++i) {
      init_barrier(block.full(i), 1);
      init_barrier(block.empty(i), 4);
    }
    init_barrier(block.has_values(), 1);
  }
  constexpr int kZeros = static_cast<int>(kPieceBytes / sizeof(uint4));
  for (int i = thread; i < rows.segments() * kZeros; i += kThreads) {
    const int at = i / kZeros * layout.segment_bytes + 2 * rows.depth();
    reinterpret_cast<uint4*>(memory + at)[i % kZeros] = uint4{};
  }
  fence_for_async();
  rows.start(shared);
  __syncthreads();
  if (thread >= kMultipliers) {
    if (thread == kMultipliers) fill_slots(block);
  } else {
    if (thread == 0) fetch_values(block);
    __syncwarp();
    multiply_slots(block, reinterpret_cast<float*>(memory + (block.slot(layout.num_slots) - block.memory)));
  }
#endif
}

}  // namespace row_slots

// False, and nothing, where this is not for the device or the shape.
template <typename Rows>
bool launch_row_slots(const LaunchContext& ctx, const Rows& rows) {
  using namespace row_slots;
  const Shape shape = shape_of(rows);
  const std::optional<Layout> layout = plan(shape, device_limits(), most_shared_bytes<Rows>());
  if (!layout) return false;
  const auto launch = [&]<int kRows>() {
    constexpr auto kernel = row_slots_kernel<Rows, kRows>;
    static std::atomic<uint64_t> prepared{0};
    const cudaError_t error =
        allow_shared_bytes(prepared, reinterpret_cast<const void*>(kernel), most_shared_bytes<Rows>());
    if (error != cudaSuccess) return note_error(ctx, "row_slots", "", cudaGetErrorString(error));
    launch_dependent(ctx, kernel, static_cast<unsigned>(grid_of(shape, device_limits())), kThreads,
                     static_cast<size_t>(layout->shared_bytes), rows, *layout);
  };
  switch (layout->slot_rows) {
    case 8: launch.template operator()<8>(); break;
    case 4: launch.template operator()<4>(); break;
    default: launch.template operator()<fewest_rows(Rows::kRowsOfOutput)>();
  }
  return true;
}

}  // namespace quire::cuda
