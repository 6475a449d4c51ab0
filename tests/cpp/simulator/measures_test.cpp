// Histogram, Timeline and MinTree: what a simulation counts with.
#include <gtest/gtest.h>

#include <cmath>

#include "simulator/histogram.h"
#include "simulator/min_tree.h"
#include "simulator/timeline.h"

namespace quire {
namespace {

TEST(HistogramTest, SmallValuesAreExact) {
  Histogram histogram;
  for (const int64_t value : {5, 1, 3, 2, 4}) histogram.add(value);
  EXPECT_EQ(histogram.quantile(0.0), 1);
  EXPECT_EQ(histogram.quantile(0.5), 3);
  EXPECT_EQ(histogram.quantile(1.0), 5);
  EXPECT_EQ(histogram.mean(), 3);
  EXPECT_EQ(Histogram().quantile(0.5), 0);
}

TEST(HistogramTest, LargeValuesAreExactToAQuarterOfAPercent) {
  for (int64_t value = 1; value < int64_t{1} << 60; value += value / 3 + 1) {
    Histogram histogram;
    histogram.add(value / 2);
    histogram.add(value);
    histogram.add(value * 2);
    EXPECT_NEAR(histogram.quantile(0.5) / static_cast<double>(value), 1.0, 0.0025) << value;
  }
}

TEST(HistogramTest, MergingIsAddingAll) {
  Histogram low, high, all;
  for (int64_t i = 0; i < 1000; ++i) {
    (i % 3 == 0 ? low : high).add(i * i * i);
    all.add(i * i * i);
  }
  low.merge(high);
  EXPECT_EQ(low.count(), all.count());
  EXPECT_EQ(low.mean(), all.mean());
  for (const double q : {0.01, 0.5, 0.9, 0.999}) EXPECT_EQ(low.quantile(q), all.quantile(q));
}

TEST(TimelineTest, WideningBinsKeepsTheIntegrals) {
  Timeline timeline;
  const int64_t narrow_ns = timeline.bin_ns();
  timeline.add(0, narrow_ns, {4, 0, 0});
  timeline.add(narrow_ns, 3 * narrow_ns, {2, 0, 1});
  EXPECT_EQ(timeline.mean(0, Timeline::kRunning), 4);
  EXPECT_EQ(timeline.mean(2, Timeline::kUsedBlocks), 1);
  timeline.add(4 * Timeline::kNumBins * narrow_ns - 1, 4 * Timeline::kNumBins * narrow_ns, {0, 0, 0});
  EXPECT_EQ(timeline.bin_ns(), 4 * narrow_ns);
  EXPECT_EQ(timeline.mean(0, Timeline::kRunning), (4 + 2 * 2) / 4.0);
}

TEST(TimelineTest, TimelinesOfDifferentWidthsMerge) {
  Timeline narrow, wide;
  const int64_t bin_ns = narrow.bin_ns();
  narrow.add(0, 2 * bin_ns, {3, 0, 0});
  wide.add(0, 2 * Timeline::kNumBins * bin_ns, {1, 0, 0});
  narrow.merge(wide);
  EXPECT_EQ(narrow.bin_ns(), 2 * bin_ns);
  EXPECT_EQ(narrow.mean(0, Timeline::kRunning), 4);
  EXPECT_EQ(narrow.mean(1, Timeline::kRunning), 1);
}

TEST(MinTreeTest, TheLowestIndexWinsAmongEquals) {
  MinTree tree(5);
  for (const size_t i : {4, 2, 3, 1, 0}) tree.set(i, 7);
  EXPECT_EQ(tree.min_index(), 0U);
  tree.set(3, 6);
  EXPECT_EQ(tree.min_index(), 3U);
  tree.set(3, 8);
  tree.set(0, 8);
  EXPECT_EQ(tree.min_index(), 1U);
}

}  // namespace
}  // namespace quire
