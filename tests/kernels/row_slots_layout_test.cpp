#include "common/row_slots_layout.h"

#include <gtest/gtest.h>

namespace quire::cuda::row_slots {
namespace {

constexpr CudaDeviceLimits kHopper = {
    .compute_capability = 90, .num_sms = 132, .max_shared_bytes_per_block = 232448};
constexpr int kMostShared = 232448 - kSpareBytes;

std::optional<Layout> plan_on_hopper(const Shape& shape) { return plan(shape, kHopper, kMostShared); }
Shape linear(int outputs, int depth) { return {outputs, 1, 1, false, depth}; }
Shape gate(int outputs, int depth) { return {outputs, 2, 1, false, depth}; }
Shape down(int outputs, int experts, int depth) { return {outputs, 1, experts, true, depth}; }

// Products of one token, as published models have them: none of them falls back.
TEST(RowSlotsLayoutTest, PublishedModelsHaveSlots) {
  struct Case {
    const char* name;
    Shape shape;
    int slot_rows, num_slots;
  };
  const Case cases[] = {
      {"Llama 3.1 8B, queries, keys, values", linear(6144, 4096), 4, 6},
      {"Llama 3.1 8B, gate and up", gate(14336, 4096), 4, 6},
      {"Llama 3.1 8B, down", linear(4096, 14336), 1, 6},
      {"Llama 3.1 8B, vocabulary", linear(128256, 4096), 4, 6},
      {"Gemma 3 12B, gate and up", gate(15360, 3840), 4, 6},
      {"Gemma 3 12B, down", linear(3840, 15360), 1, 6},
      {"Gemma 3 12B, vocabulary", linear(262144, 3840), 4, 6},
      {"GPT-OSS-20B, queries, keys, values", linear(5120, 2880), 8, 4},
      {"GPT-OSS-20B, experts' gate and up", gate(4 * 2880, 2880), 8, 4},
      {"GPT-OSS-20B, experts' down", down(2880, 4, 2880), 8, 4},
      {"Qwen3-30B-A3B, output", linear(2048, 4096), 4, 4},
      {"Qwen3-30B-A3B, router", linear(128, 2048), 8, 2},
      {"Qwen3-30B-A3B, experts' gate and up", gate(8 * 768, 2048), 8, 6},
      {"Qwen3-30B-A3B, experts' down", down(2048, 8, 768), 16, 8},
      {"Mixtral 8x7B, experts' down", down(4096, 2, 14336), 1, 4},
      {"70 B, gate and up", gate(28672, 8192), 2, 6},
      {"70 B, down", linear(8192, 28672), 1, 2},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const auto layout = plan_on_hopper(c.shape);
    ASSERT_TRUE(layout.has_value());
    EXPECT_EQ(layout->slot_rows, c.slot_rows);
    EXPECT_EQ(layout->num_slots, c.num_slots);
  }
}

TEST(RowSlotsLayoutTest, OtherDevicesShortAndOddRowsHaveNone) {
  for (const int capability : {80, 89, 100, 120}) {
    CudaDeviceLimits limits = kHopper;
    limits.compute_capability = capability;
    EXPECT_FALSE(plan(linear(4096, 4096), limits, kMostShared).has_value()) << capability;
  }
  for (const int depth : {64, 448, 520, 2056, 8200}) EXPECT_FALSE(plan_on_hopper(linear(4096, depth)));
  EXPECT_FALSE(plan_on_hopper(linear(4096, 65536)));      // a row alone is too long
  EXPECT_FALSE(plan_on_hopper(linear(4096, 4672)));       // eight rows are, and fewer have no whole steps
  EXPECT_FALSE(plan_on_hopper(down(4096, 8, 14336)));     // no room beside what they are multiplied by
  EXPECT_FALSE(plan_on_hopper(linear(40'000'000, 512)));  // nor beside their sums
}

// What the kernel takes for granted.
TEST(RowSlotsLayoutTest, WhatIsDividedFits) {
  for (int depth = kMinDepth; depth <= 36864; depth += kPiece) {
    for (const int outputs : {1, 3, 131, 132, 133, 2048, 30720, 262144}) {
      for (const Shape& shape : {linear(outputs, depth), gate(outputs, depth), down(outputs, 5, depth)}) {
        const auto layout = plan_on_hopper(shape);
        if (!layout) continue;
        const Layout& l = *layout;
        SCOPED_TRACE(testing::Message()
                     << outputs << " of " << depth << ", " << shape.rows_of_output << " " << shape.segments);
        ASSERT_TRUE(l.slot_rows == 16 || l.slot_rows == 8 || l.slot_rows == 4 ||
                    l.slot_rows == fewest_rows(shape.rows_of_output));
        ASSERT_EQ(l.part * 8, depth * std::min(l.slot_rows, 8));
        // Half a step is left of rows only, not of their parts: zeros lie behind the last part alone.
        ASSERT_EQ(l.part % (l.slot_rows >= 8 ? kPiece : kStep), 0);
        ASSERT_EQ(l.num_slots % kGroups, 0);
        ASSERT_GE(l.num_slots, kGroups);
        ASSERT_LE(l.num_slots, kMaxSlots);
        ASSERT_LE(1, l.on_the_way);
        ASSERT_LE(l.on_the_way, l.num_slots / kGroups);
        ASSERT_EQ(l.slot_bytes % 128, 0);
        ASSERT_EQ(l.segment_bytes % 128, 0);
        ASSERT_EQ(l.segment_bytes, 2 * depth + static_cast<int>(kPieceBytes));
        const int blocks = grid_of(shape, kHopper);
        const int64_t rows = (outputs + blocks - 1) / blocks;
        ASSERT_EQ(l.first_output(0), 0);
        ASSERT_EQ(l.first_output(blocks), outputs);
        for (int b = 0; b < blocks; ++b) {
          const int stretch = l.first_output(b + 1) - l.first_output(b);
          ASSERT_TRUE(stretch == rows || stretch == rows - 1) << b;
          // The first block has more to do than multiply (experts/one_token.cuh).
          ASSERT_GE(stretch, l.first_output(1));
        }
        ASSERT_EQ(l.shared_bytes,
                  int64_t{shape.segments} * l.segment_bytes + l.num_slots * l.slot_bytes +
                      4 * rows * shape.rows_of_output * sums_of_row(l.slot_rows, shape.is_segmented));
        ASSERT_LE(l.shared_bytes, kMostShared);
      }
    }
  }
}

}  // namespace
}  // namespace quire::cuda::row_slots
