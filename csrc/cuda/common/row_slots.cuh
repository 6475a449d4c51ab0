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
#include "common/weight_stream.cuh"

namespace quire::cuda {

namespace row_slots {

constexpr int kMultipliers = 128 * kGroups, kThreads = kMultipliers + 32 * kGroups;
constexpr int kMaxBarriers = 2 * kMaxSlots + 1;  // full, empty, and the values'

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

// A group's slot of the ring, and which way around it is.
struct Turn {
  int slot;
  uint32_t round = 0;
  __device__ __forceinline__ void advance(const Layout& layout) {
    slot += kGroups;
    if (slot >= layout.num_slots) {
      slot -= layout.num_slots;
      round ^= 1;
    }
  }
};

// Of a block: the outputs it has of a product, and what lies where.
template <typename Rows>
struct Block {
  const Rows& rows;
  const typename Rows::Shared& shared;
  const Layout& layout;
  int first, last;  // outputs
  uint32_t values_at, slots_at, barriers;

  __device__ uint32_t full(int slot) const { return barriers + 8 * static_cast<uint32_t>(slot); }
  __device__ uint32_t empty(int slot) const { return full(kMaxSlots + slot); }
  __device__ uint32_t has_values() const { return full(2 * kMaxSlots); }
  __device__ uint32_t values(int segment) const {
    return values_at + static_cast<uint32_t>(segment * layout.segment_bytes);
  }
  __device__ uint32_t slot(int i) const { return slots_at + static_cast<uint32_t>(i * layout.slot_bytes); }
  __device__ int outputs_of_slot() const { return layout.slot_rows / Rows::kRowsOfOutput; }

  // What a slot is filled with.
  struct Part {
    int output, outputs, segment;
    int run;  // the output that its run begins with
  };
  // Groups take turns. Calls mine(part, turn) for each that is the group's, in order, and ended(part) behind
  // the last segment of some outputs, whoever had it.
  template <typename Mine, typename Ended>
  __device__ __forceinline__ void for_each_turn(int group, Mine mine, Ended ended) const {
    Turn turn{.slot = group};
    int whose = 0;
    for (int run = first, end = first; run < last; run = end) {
      end = min(last, run + rows.run(run));
      for (int output = run; output < end; output += outputs_of_slot()) {
        Part part{
            .output = output, .outputs = min(outputs_of_slot(), end - output), .segment = 0, .run = run};
        for (; part.segment < rows.segments(); ++part.segment) {
          if (whose == group) {
            mine(part, turn);
            turn.advance(layout);
          }
          if (++whose == kGroups) whose = 0;
        }
        ended(part);
      }
    }
  }
};

// The barriers of a group's slots, by the warp that fills these.
template <typename Rows>
__device__ __forceinline__ void init_barriers(const Block<Rows>& block, int group) {
  const int lane = static_cast<int>(threadIdx.x) % 32, slot = kGroups * lane + group;
  static_assert(kMaxSlots < 32 * kGroups);
  if (slot < block.layout.num_slots) {
    init_barrier(block.full(slot), 1);
    init_barrier(block.empty(slot), 4);
  }
  if (group == 0 && lane == 31) init_barrier(block.has_values(), 1);
}

// Behind each segment of values, by all warps that fill.
template <typename Rows>
__device__ __forceinline__ void write_zeros(const Rows& rows, const Layout& layout, std::byte* values) {
  constexpr int kZeros = static_cast<int>(kPieceBytes / sizeof(uint4));
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) - kMultipliers; i < rows.segments() * kZeros;
       i += kThreads - kMultipliers) {
    const int at = i / kZeros * layout.segment_bytes + 2 * rows.depth();
    reinterpret_cast<uint4*>(values + at)[i % kZeros] = uint4{};
  }
}

// Of all threads, which are at different places.
__device__ __forceinline__ void sync_block() { asm volatile("bar.sync 2, %0;\n" ::"n"(kThreads) : "memory"); }

// By a warp.
template <typename Rows>
__device__ __forceinline__ void fetch_values(const Block<Rows>& block) {
  const Rows& rows = block.rows;
  const auto bytes = static_cast<uint32_t>(2 * rows.depth());
  wait_for_inputs();
  if (!is_elected()) return;
  arrive_expecting(block.has_values(), bytes * static_cast<uint32_t>(rows.segments()));
#pragma unroll 1
  for (int s = 0; s < rows.segments(); ++s)
    copy_bulk(block.values(s), rows.values() + static_cast<int64_t>(s) * rows.depth(), bytes,
              block.has_values());
}

// A group's slots, by a warp. What a slot takes is the time of a few dozen instructions that wait for each
// other, so that two warps are needed where slots are short.
template <typename Rows>
__device__ __forceinline__ void fill_slots(const Block<Rows>& block, int group) {
  using T = typename Rows::Element;
  const Rows& rows = block.rows;
  const Layout& layout = block.layout;
  const auto row_bytes = static_cast<uint32_t>(2 * rows.depth());
  const uint64_t once = read_once_policy();
  const T* of_run[Rows::kRowsOfOutput];
  int last_run = -1, on_the_way = 0;
  Turn oldest{.slot = group};
  const auto fill = [&](const auto& part, const Turn& turn) {
    if (Rows::kSegmented || part.run != last_run) {
#pragma unroll
      for (int r = 0; r < Rows::kRowsOfOutput; ++r)
        of_run[r] = rows.weight(block.shared, part.run, part.segment, r);
      last_run = part.run;
    }
#pragma unroll 1
    for (; on_the_way >= layout.on_the_way; --on_the_way) {
      wait_barrier(block.full(oldest.slot), oldest.round);
      oldest.advance(layout);
    }
    ++on_the_way;
    wait_barrier(block.empty(turn.slot), turn.round ^ 1);
    if (!is_elected()) return;
    const uint32_t bytes = static_cast<uint32_t>(part.outputs) * row_bytes, full = block.full(turn.slot);
    if (of_run[0] == nullptr) return arrive(full);
    arrive_expecting(full, bytes * Rows::kRowsOfOutput);
#pragma unroll
    for (int r = 0; r < Rows::kRowsOfOutput; ++r)
      copy_bulk(block.slot(turn.slot) + static_cast<uint32_t>(r * block.outputs_of_slot()) * row_bytes,
                of_run[r] + static_cast<int64_t>(part.output - part.run) * rows.depth(), bytes, full, once);
  };
  block.for_each_turn(group, fill, [](const auto&) {});
}

// A slot's rows, up to eight of them, times a segment's values: of each row's parts the sums of products, on
// the diagonal of each piece.
template <typename T, int kRegisters>
__device__ __forceinline__ void multiply_rows(float (&sums)[kRegisters], const Layout& layout, uint32_t rows,
                                              uint32_t values) {
  const auto part_bytes = static_cast<uint32_t>(2 * layout.part);
  const uint64_t a = plain_descriptor(rows, kPieceBytes, part_bytes);
  const uint64_t b = plain_descriptor(values, kPieceBytes, part_bytes);
  const int steps = layout.part / kStep;
  // As a loop that is not unrolled: with several to a turn, or several sums, it takes half as long again.
#pragma unroll 1
  for (int i = 0; i < steps; ++i)
    wgmma_rows<T>(sums, a + static_cast<uint64_t>(i) * (2 * kPieceBytes >> 4),
                  b + static_cast<uint64_t>(i) * (2 * kPieceBytes >> 4), 1);
  // Half a step is left: its piece twice, which meets the values' last and the zeros behind them.
  if (layout.part % kStep != 0)
    wgmma_rows<T>(sums,
                  plain_descriptor(rows + 2 * kPieceBytes * static_cast<uint32_t>(steps), 0, part_bytes),
                  advanced(b, 2 * kPieceBytes * static_cast<uint32_t>(steps)), 1);
}

template <typename T, int kEights, int kRegisters>
__device__ __forceinline__ void multiply_slot(float (&sums)[kEights][kRegisters], const Layout& layout,
                                              uint32_t slot, uint32_t values) {
#pragma unroll
  for (auto& eight : sums) {
#pragma unroll
    for (float& sum : eight) sum = 0.0F;
    hold(eight);
  }
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < kEights; ++i)
    multiply_rows<T>(sums[i], layout, slot + static_cast<uint32_t>(16 * i * layout.part), values);
  wgmma_commit();
  wgmma_wait<0>();
#pragma unroll
  for (auto& eight : sums) hold(eight);
}

// A warp's two pieces' diagonals, added up, on all lanes that have a part of one.
template <int kRegisters>
__device__ __forceinline__ float2 diagonals(const float (&sums)[kRegisters]) {
  constexpr int kParts = kRegisters / 4;
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

// By the threads that multiply.
template <int kRows, typename Rows>
__device__ __forceinline__ void multiply_slots(const Block<Rows>& block, float* kept) {
  using T = typename Rows::Element;
  constexpr int kEights = std::max(1, kRows / 8);  // of rows
  constexpr int kRegisters = 32 * kEights / kRows, kRowSums = std::max(1, 4 / kRows);
  constexpr int kOutputs = kRows / Rows::kRowsOfOutput;  // of a slot
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int group = static_cast<int>(threadIdx.x) / 128;
  // Of sums of output `o` and row `r`.
  const auto place = [&](int o, int r) {
    return ((o - block.first) * Rows::kRowsOfOutput + r) * kSums<Rows, kRows>;
  };
  const auto keep = [&](int output, int outputs, const float (&sums)[kEights][kRegisters]) {
    const auto keep_row = [&](int row, float sum) {
      const int o = row % kOutputs;
      if (o >= outputs) return;
      const int of_group = Rows::kSegmented ? group * kRowSums : 0;
      kept[place(output + o, row / kOutputs) + of_group + warp % kRowSums] = sum;
    };
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      const float2 v = diagonals(sums[i]);
      if (lane != 0) continue;
      if constexpr (kRows >= 8) {
        keep_row(8 * i + 2 * warp, v.x);
        keep_row(8 * i + 2 * warp + 1, v.y);
      } else {
        keep_row(warp / kRowSums, v.x + v.y);
      }
    }
  };
  // Of the first output that this thread finishes.
  typename Rows::Constants constants{};
  const int first = block.first + static_cast<int>(threadIdx.x);
  if (first < block.last) constants = block.rows.constants(block.shared, first);
  wait_barrier(block.has_values(), 0);
  if (first < block.last) complete(block.rows, block.shared, first, constants);
  float sums[kEights][kRegisters] = {}, totals[kEights][kRegisters] = {};
  const auto multiply = [&](const auto& part, const Turn& turn) {
    wait_barrier(block.full(turn.slot), turn.round);
    const bool has_weights =
        !Rows::kSegmented || block.rows.weight(block.shared, part.output, part.segment, 0) != nullptr;
    if (has_weights) multiply_slot<T>(sums, block.layout, block.slot(turn.slot), block.values(part.segment));
    __syncwarp();
    if (lane == 0) arrive(block.empty(turn.slot));
    if constexpr (Rows::kSegmented) {
      const float scale = block.rows.scale(block.shared, part.segment);
#pragma unroll
      for (int i = 0; i < kEights; ++i) {
#pragma unroll
        for (int j = 0; j < kRegisters; ++j)
          totals[i][j] = has_weights ? fmaf(scale, sums[i][j], totals[i][j]) : totals[i][j];
      }
    } else {
      keep(part.output, part.outputs, sums);
    }
  };
  block.for_each_turn(group, multiply, [&](const auto& part) {
    if constexpr (Rows::kSegmented) {
      keep(part.output, part.outputs, totals);
#pragma unroll
      for (auto& eight : totals) {
#pragma unroll
        for (float& total : eight) total = 0.0F;
      }
    }
  });
  static_assert(kMultipliers == 256);
  sync_threads<256>(1);
#pragma unroll 1
  for (int o = first; o < block.last; o += kMultipliers) {
    if (o > first) {
      constants = block.rows.constants(block.shared, o);
      complete(block.rows, block.shared, o, constants);
    }
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
  __shared__ __align__(8) uint64_t barriers[kMaxBarriers];
  __shared__ typename Rows::Shared shared;
  const int thread = static_cast<int>(threadIdx.x);
  const int values_bytes = rows.segments() * layout.segment_bytes;
  const Block<Rows> block = {.rows = rows,
                             .shared = shared,
                             .layout = layout,
                             .first = layout.first_output(static_cast<int>(blockIdx.x)),
                             .last = layout.first_output(static_cast<int>(blockIdx.x) + 1),
                             .values_at = in_register(shared_address(memory)),
                             .slots_at = in_register(shared_address(memory + values_bytes)),
                             .barriers = in_register(shared_address(barriers))};
  if (thread >= kMultipliers) {
    const int group = (thread - kMultipliers) / 32;
    init_barriers(block, group);
    write_zeros(rows, layout, memory);
    fence_for_async();
    sync_block();
    return fill_slots(block, group);
  }
  rows.start(shared);
  sync_block();
  rows.started(shared);
  if (thread < 32) fetch_values(block);
  __syncwarp();
  multiply_slots<kRows>(
      block, reinterpret_cast<float*>(memory + values_bytes + layout.num_slots * layout.slot_bytes));
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
    case 16: launch.template operator()<16>(); break;
    case 8: launch.template operator()<8>(); break;
    case 4: launch.template operator()<4>(); break;
    default: launch.template operator()<fewest_rows(Rows::kRowsOfOutput)>();
  }
  return true;
}

}  // namespace quire::cuda
