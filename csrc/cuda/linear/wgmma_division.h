// How the kernel of wgmma.cuh divides a weight among blocks, and a block its shared memory. Without anything
// of CUDA.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

namespace quire::cuda::wgmma_linear {

constexpr int kMaxHalfRows = 128;  // of the weight
constexpr int kRowMultiple = 8;    // of a swizzle atom, and of what a warp writes at once
constexpr int kDepth = 64;         // of a step: 128 bytes of each row, which is what a swizzle atom has
constexpr int kRowBytes = kDepth * 2;
constexpr int kMaxStages = 12;
constexpr int kAlignment = 1024;     // of a stage
constexpr int kBarrierBytes = 1024;  // in front of all stages
// Of the weight to a multiprocessor, at once. What the short kernels in front read waits behind more, and
// with less memory is not busy.
constexpr int kBytesOnTheWay = 64 << 10;

constexpr std::array kClusterBlocks = {1, 2, 4, 8};
constexpr int kMaxClusterBlocks = 8;

// Rows of x that are multiplied where there are so many.
constexpr int slots_for(int64_t rows) { return rows <= 16 ? 16 : rows <= 32 ? 32 : 64; }

struct Shape {
  int outputs;    // rows of the weight, or half of them where these are gates and what they are gates of
  bool is_gated;  // a unit's second half then is of the same outputs as its first
  int slots;      // rows of x that are multiplied, a multiple of 16
  int steps;      // of the weight's columns
};

struct Device {
  int most_shared_bytes;                                 // of a block
  std::array<int, kClusterBlocks.size()> most_clusters;  // at the same time, of so many blocks; 0: unknown
};

struct Division {
  int cluster_blocks = 1;
  int clusters = 1;
  int units = 1;       // of each cluster at most, one after the other; one where blocks share it
  int half_rows = 8;   // of the weight, of half a unit; a multiple of kRowMultiple
  int stages = 2;      // of the ring
  int on_the_way = 1;  // stages whose weight is, at most
  int shared_bytes = 0;

  constexpr int outputs_of_unit(bool is_gated) const { return (is_gated ? 1 : 2) * half_rows; }
};

constexpr int weight_bytes(int half_rows) { return 2 * half_rows * kRowBytes; }
constexpr int stage_bytes(int half_rows, int slots) { return weight_bytes(half_rows) + slots * kRowBytes; }

// What is multiplied at a time is 64 rows. Of up to 64 in half a unit each of the two warpgroups has a half,
// of more it has 64 of both: what else it would multiply costs power.
constexpr int halves_of_warpgroup(int half_rows) { return half_rows <= 64 ? 1 : 2; }

// Sums that are written to shared memory, where the stages were: floats from one row of x to the next. Four
// more than a multiple of 16, so that the lanes of a warp write to different banks.
constexpr int sums_stride(int half_rows) { return 2 * half_rows + 4; }
constexpr int sums_bytes(int half_rows, int slots) {
  return slots * sums_stride(half_rows) * static_cast<int>(sizeof(float));
}

// Lays out a block's shared memory; false: two stages are too much.
constexpr bool lay_out(Division& division, const Shape& shape, int most_shared_bytes) {
  const int stage = stage_bytes(division.half_rows, shape.slots);
  // Where half a unit has fewer rows than are multiplied of it, what lies behind is.
  const int taken = division.half_rows + 64 * halves_of_warpgroup(division.half_rows);
  const int behind = std::max(0, taken * kRowBytes - stage);
  const int others = kAlignment + kBarrierBytes;
  division.stages =
      std::min({kMaxStages, std::max(shape.steps, 2), (most_shared_bytes - others - behind) / stage});
  division.on_the_way =
      std::clamp(kBytesOnTheWay / weight_bytes(division.half_rows), 1, std::max(division.stages, 1));
  const bool has_sums = shape.is_gated || division.cluster_blocks > 1;
  const int sums = has_sums ? sums_bytes(division.half_rows, shape.slots) : 0;
  division.shared_bytes = others + std::max(division.stages * stage + behind, sums);
  return division.stages >= 2 && division.shared_bytes <= most_shared_bytes;
}

// The division that takes the least time, by what comes into a multiprocessor; none where nothing fits.
constexpr std::optional<Division> divide(const Shape& shape, const Device& device) {
  // A row of x costs a little less than one of the weight: it comes from the L2 cache. Adding up what blocks
  // of a cluster have costs as much as these bytes: a microsecond is 33 KiB to a multiprocessor.
  constexpr double kOfX = 0.9, kOfSharing = 40e3;
  const auto ceil_div = [](int a, int b) { return (a + b - 1) / b; };
  std::optional<Division> best;
  double least = 0;
  for (size_t i = 0; i < kClusterBlocks.size(); ++i) {
    const int blocks = kClusterBlocks[i], most = device.most_clusters[i];
    if (most == 0 || blocks > shape.steps) continue;
    Division division{.cluster_blocks = blocks};
    division.units = ceil_div(shape.outputs, most * (shape.is_gated ? 1 : 2) * kMaxHalfRows);
    if (blocks > 1 && division.units > 1) continue;
    const int each = ceil_div(shape.outputs, most * division.units);
    division.half_rows = ceil_div(shape.is_gated ? each : ceil_div(each, 2), kRowMultiple) * kRowMultiple;
    division.clusters = std::min(most, ceil_div(shape.outputs, division.outputs_of_unit(shape.is_gated)));
    if (!lay_out(division, shape, device.most_shared_bytes)) continue;
    const double bytes = static_cast<double>(division.units) * ceil_div(shape.steps, blocks) *
                             (2 * division.half_rows + kOfX * shape.slots) * kRowBytes +
                         (blocks > 1 ? kOfSharing : 0);
    if (!best || bytes < least) {
      least = bytes;
      best = division;
    }
  }
  return best;
}

}  // namespace quire::cuda::wgmma_linear
