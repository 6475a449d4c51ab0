#include "worker/cudagraph_dispatcher.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace quire {
namespace {

TEST(CudagraphDispatcherTest, DefaultSizesAscendToTheLargestAndWasteLittle) {
  for (const int32_t max_tokens : {1, 2, 3, 7, 24, 64, 100, 256, 512}) {
    const auto sizes = CudagraphDispatcher::default_sizes(max_tokens);
    EXPECT_TRUE(std::is_sorted(sizes.begin(), sizes.end()));
    EXPECT_EQ(std::adjacent_find(sizes.begin(), sizes.end()), sizes.end());
    EXPECT_EQ(sizes.front(), 1);
    EXPECT_EQ(sizes.back(), max_tokens);
    for (size_t i = 1; i < sizes.size(); ++i) {
      EXPECT_LE(sizes[i] - sizes[i - 1], std::max(sizes[i - 1], 1));
      if (sizes[i] > 64) {
        EXPECT_LE(sizes[i] - sizes[i - 1], sizes[i - 1] / 4);
      }
    }
  }
}

TEST(CudagraphDispatcherTest, UniformDecodesAreFullAndMixedBatchesPiecewise) {
  CudagraphDispatcher dispatcher({1, 2, 4, 8}, {1, 2, 4, 8, 16});
  const auto expect = [&](int32_t num_tokens, bool uniform, CudagraphMode mode, int32_t padded) {
    const auto choice = dispatcher.dispatch(num_tokens, uniform);
    EXPECT_EQ(choice.mode, mode) << num_tokens;
    EXPECT_EQ(choice.num_tokens, padded) << num_tokens;
  };
  expect(1, true, CudagraphMode::kFull, 1);
  expect(3, true, CudagraphMode::kFull, 4);
  expect(8, true, CudagraphMode::kFull, 8);
  expect(9, true, CudagraphMode::kPiecewise, 16);
  expect(3, false, CudagraphMode::kPiecewise, 4);
  expect(17, false, CudagraphMode::kNone, 17);
  expect(17, true, CudagraphMode::kNone, 17);
  EXPECT_EQ(dispatcher.count(CudagraphMode::kFull), 3U);
  EXPECT_EQ(dispatcher.count(CudagraphMode::kPiecewise), 2U);
  EXPECT_EQ(dispatcher.count(CudagraphMode::kNone), 2U);
}

TEST(CudagraphDispatcherTest, RowsWithDraftsHaveGraphsOfTheirOwn) {
  CudagraphDispatcher dispatcher({1, 2, 4, 8}, {1, 2, 4, 8, 16}, /*draft_query_len=*/3, {3, 6, 12});
  const auto choice = dispatcher.dispatch(9, 3);
  EXPECT_EQ(choice.mode, CudagraphMode::kFull);
  EXPECT_EQ(choice.num_tokens, 12);
  EXPECT_EQ(choice.query_len, 3);
  EXPECT_EQ(dispatcher.dispatch(3, 1).num_tokens, 4);
  EXPECT_EQ(dispatcher.dispatch(3, 1).query_len, 1);
  EXPECT_EQ(dispatcher.dispatch(6, 2).mode, CudagraphMode::kPiecewise);
  EXPECT_EQ(dispatcher.dispatch(15, 3).mode, CudagraphMode::kPiecewise);
}

TEST(CudagraphDispatcherTest, WithoutGraphsEveryStepRunsAsItIs) {
  CudagraphDispatcher dispatcher;
  const auto choice = dispatcher.dispatch(5, true);
  EXPECT_EQ(choice.mode, CudagraphMode::kNone);
  EXPECT_EQ(choice.num_tokens, 5);
  EXPECT_EQ(dispatcher.count(CudagraphMode::kNone), 1U);
}

}  // namespace
}  // namespace quire
