// How the kernel of row_slots.cuh divides a block's shared memory, and whether it is for a shape at all.
// Without anything of CUDA.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "quire/kernels/cuda_device.h"

namespace quire::cuda::row_slots {

constexpr int kGroups = 2;  // of four warps, which multiply, each with a warp that fills its slots
constexpr int kMaxSlots = 24;
constexpr int kPiece = 64;         // elements
constexpr int kStep = 2 * kPiece;  // of a row's part, that one product takes
constexpr uint32_t kPieceBytes = 128;

constexpr int kBytesOnTheWay = 64 << 10;  // to a multiprocessor, at once
// Of a slot of eight or sixteen rows at most, and of one of four; where it would have more it has fewer rows
// where it can. Longer ones there are not.
constexpr int kEightRowsBytes = 33 << 10, kFourRowsBytes = 48 << 10, kMostSlotBytes = 72 << 10;
constexpr int kMinDepth = 512;        // shorter rows are copied too slowly
constexpr int kSpareBytes = 6 << 10;  // for blocks of the short kernels, which run beside

// As rows.cuh has it.
struct Shape {
  int num_outputs;
  int rows_of_output;
  int segments;
  bool is_segmented;
  int depth;
};

// A slot has slot_rows rows of one segment. Up to eight are multiplied side by side, each as so many parts
// that these are eight.
struct Layout {
  int slot_rows;
  int num_slots;
  int slot_bytes;
  int part;            // elements
  int segment_bytes;   // of values, with zeros behind them
  int on_the_way;      // slots that a group has filled at once
  int outputs, fewer;  // of a block; the first so many blocks have one less
  int shared_bytes;

  constexpr int first_output(int block) const { return block * outputs - (block < fewer ? block : fewer); }
};

// Rows of a slot where eight and four are too many.
constexpr int fewest_rows(int rows_of_output) { return rows_of_output == 2 ? 2 : 1; }

// How many sums of a row are kept: of warps, and of groups where a row's segments are dealt out to these.
constexpr int sums_of_row(int slot_rows, bool is_segmented) {
  return std::max(1, 4 / slot_rows) * (is_segmented ? kGroups : 1);
}

// Blocks: each has an equal stretch of the outputs.
inline int grid_of(const Shape& shape, const CudaDeviceLimits& limits) {
  return std::min(shape.num_outputs, limits.num_sms);
}

// `most_shared_bytes`: that a block may have dynamically. None: where this is not for the device or the
// shape.
inline std::optional<Layout> plan(const Shape& shape, const CudaDeviceLimits& limits, int most_shared_bytes) {
  const int depth = shape.depth, row_bytes = 2 * depth, blocks = grid_of(shape, limits);
  if (limits.compute_capability != 90 || depth < kMinDepth || depth % kPiece != 0) return std::nullopt;
  const auto ceil_div = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  // As many rows to a slot as keep it short; where eight are too many, of parts that are whole steps.
  const auto has_whole_steps = [depth](int slot_rows) { return depth * slot_rows / 8 % kStep == 0; };
  const int fewest = fewest_rows(shape.rows_of_output);
  Layout layout{};
  layout.slot_rows = 16 * row_bytes > kEightRowsBytes ? 8 : 16;
  if (8 * row_bytes > kEightRowsBytes && has_whole_steps(4)) layout.slot_rows = 4;
  if (4 * row_bytes > kFourRowsBytes && has_whole_steps(fewest)) layout.slot_rows = fewest;
  layout.slot_bytes = layout.slot_rows * row_bytes;
  layout.part = depth * std::min(layout.slot_rows, 8) / 8;
  layout.segment_bytes = row_bytes + static_cast<int>(kPieceBytes);
  if (layout.slot_bytes > kMostSlotBytes) return std::nullopt;
  layout.outputs = static_cast<int>(ceil_div(shape.num_outputs, blocks));
  layout.fewer = layout.outputs * blocks - shape.num_outputs;
  const int64_t rows = int64_t{layout.outputs} * shape.rows_of_output;
  const int64_t other = int64_t{shape.segments} * layout.segment_bytes +
                        4 * rows * sums_of_row(layout.slot_rows, shape.is_segmented);
  const int64_t room = most_shared_bytes - other;
  // A slot is filled for the same group each time: none can be a round behind the one that fills.
  const int64_t fitting = std::min<int64_t>(kMaxSlots, room / layout.slot_bytes) / kGroups * kGroups;
  if (room <= 0 || fitting < kGroups) return std::nullopt;
  const int64_t slots = ceil_div(rows, layout.slot_rows) * shape.segments;
  layout.num_slots = static_cast<int>(std::min(fitting, ceil_div(slots, kGroups) * kGroups));
  layout.on_the_way =
      std::clamp(kBytesOnTheWay / (kGroups * layout.slot_bytes), 1, layout.num_slots / kGroups);
  layout.shared_bytes = static_cast<int>(other) + layout.num_slots * layout.slot_bytes;
  return layout;
}

}  // namespace quire::cuda::row_slots
