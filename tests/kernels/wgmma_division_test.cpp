#include "linear/wgmma_division.h"

#include <gtest/gtest.h>

#include <vector>

namespace quire::cuda::wgmma_linear {
namespace {

// As an H200 says, of whose 132 multiprocessors some have no three neighbours.
constexpr Device kHopper = {.most_shared_bytes = 210944, .most_clusters = {132, 66, 30, 15}};

// Products of 64 rows, as published models have them.
TEST(WgmmaDivisionTest, PublishedModelsKeepAllMultiprocessorsBusy) {
  struct Case {
    const char* name;
    Shape shape;
    int cluster_blocks, units, half_rows;
  };
  const Case cases[] = {
      {"Llama 3.1 8B, queries, keys, values", {6144, false, 64, 64}, 4, 1, 104},
      {"Llama 3.1 8B, output", {4096, false, 64, 64}, 4, 1, 72},
      {"Llama 3.1 8B, gate and up", {14336, true, 64, 64}, 1, 1, 112},
      {"Llama 3.1 8B, down", {4096, false, 64, 224}, 4, 1, 72},
      {"Llama 3.1 8B, vocabulary", {128256, false, 64, 64}, 1, 4, 128},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const auto division = divide(c.shape, kHopper);
    ASSERT_TRUE(division.has_value());
    EXPECT_EQ(division->cluster_blocks, c.cluster_blocks);
    EXPECT_EQ(division->units, c.units);
    EXPECT_EQ(division->half_rows, c.half_rows);
    EXPECT_GE(division->cluster_blocks * division->clusters, 116);
    EXPECT_GE(division->stages, 4);
    const int on_the_way = division->on_the_way * weight_bytes(division->half_rows);
    EXPECT_LE(on_the_way, kBytesOnTheWay);
    EXPECT_GT(on_the_way, kBytesOnTheWay * 3 / 4);
  }
}

TEST(WgmmaDivisionTest, WhatIsUnknownIsNotUsed) {
  const Device alone = {.most_shared_bytes = 210944, .most_clusters = {132, 0, 0, 0}};
  const auto division = divide({4096, false, 64, 64}, alone);
  ASSERT_TRUE(division.has_value());
  EXPECT_EQ(division->cluster_blocks, 1);
  EXPECT_FALSE(divide({4096, false, 64, 64}, {.most_shared_bytes = 210944, .most_clusters = {}}));
  EXPECT_FALSE(divide({4096, false, 64, 64}, {.most_shared_bytes = 32768, .most_clusters = {1}}));
}

// What the kernel takes for granted.
TEST(WgmmaDivisionTest, EachOutputIsInOneUnitAndAllFits) {
  for (const int slots : {16, 32, 64}) {
    for (const int steps : {1, 2, 3, 9, 64, 224}) {
      for (int outputs = 8; outputs < 300000; outputs += outputs < 4096 ? 8 : 5000) {
        for (const bool is_gated : {false, true}) {
          SCOPED_TRACE(testing::Message() << outputs << (is_gated ? " gated" : "") << " of " << steps
                                          << " steps, " << slots << " slots");
          const Shape shape{outputs, is_gated, slots, steps};
          const auto division = divide(shape, kHopper);
          ASSERT_TRUE(division.has_value());
          const Division& d = *division;
          ASSERT_EQ(d.half_rows % kRowMultiple, 0);
          ASSERT_LE(d.half_rows, kMaxHalfRows);
          ASSERT_LE(d.cluster_blocks, steps);
          ASSERT_TRUE(d.units == 1 || d.cluster_blocks == 1);
          const size_t which = d.cluster_blocks == 1   ? 0
                               : d.cluster_blocks == 2 ? 1
                               : d.cluster_blocks == 4 ? 2
                                                       : 3;
          ASSERT_LE(d.clusters, kHopper.most_clusters[which]);
          // Units are dealt out to clusters, and each cluster has one.
          const int of_unit = d.outputs_of_unit(is_gated), units = (outputs + of_unit - 1) / of_unit;
          ASSERT_LE(units, d.clusters * d.units);
          ASSERT_GE(units, d.clusters);
          ASSERT_GT(units, d.clusters * (d.units - 1));
          ASSERT_GE(d.stages, 2);
          ASSERT_LE(d.stages, kMaxStages);
          ASSERT_GE(d.on_the_way, 1);
          ASSERT_LE(d.on_the_way, d.stages);
          ASSERT_LE(d.shared_bytes, kHopper.most_shared_bytes);
          // The first byte may be one behind a multiple.
          const int room = d.shared_bytes - (kAlignment - 1) - kBarrierBytes;
          ASSERT_GE(room, (d.stages - 1) * stage_bytes(d.half_rows, slots) +
                              (d.half_rows + 64 * halves_of_warpgroup(d.half_rows)) * kRowBytes);
          if (is_gated || d.cluster_blocks > 1) {
            ASSERT_GE(room, sums_bytes(d.half_rows, slots));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire::cuda::wgmma_linear
