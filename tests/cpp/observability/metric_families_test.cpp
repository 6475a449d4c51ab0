#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "quire/metrics.h"

namespace quire {
namespace {

TEST(MetricFamiliesTest, EachMetricHasOneFamilyInItsPlace) {
  ASSERT_EQ(metric_families().size(), kNumMetrics);
  std::set<std::string> names;
  for (size_t i = 0; i < kNumMetrics; ++i) {
    const MetricFamily& family = metric_families()[i];
    EXPECT_EQ(static_cast<size_t>(family.metric), i);
    EXPECT_TRUE(names.insert(family.name).second) << family.name;
    EXPECT_TRUE(std::string(family.name).starts_with("quire:")) << family.name;
    EXPECT_EQ(std::string(family.name).find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_:"),
              std::string::npos)
        << family.name;
    EXPECT_STRNE(family.help, "");
  }
}

// promtool complains of names and buckets that do not fit.
TEST(MetricFamiliesTest, NamesAndBucketsFitTheKind) {
  for (const MetricFamily& family : metric_families()) {
    // vLLM calls a histogram of tokens iteration_tokens_total.
    const bool counts = family.kind == MetricKind::kCounter || family.metric == Metric::kIterationTokens;
    EXPECT_EQ(std::string(family.name).ends_with("_total"), counts) << family.name;
    EXPECT_EQ(family.buckets.empty(), family.kind != MetricKind::kHistogram) << family.name;
    EXPECT_TRUE(std::is_sorted(family.buckets.begin(), family.buckets.end(), std::less_equal<>()))
        << family.name;
    EXPECT_EQ(std::string(family.label_name).empty(), family.label_values.empty()) << family.name;
  }
}

TEST(MetricFamiliesTest, TokenBucketsGoFromOneToAMillion) {
  const auto& buckets = metric_families()[static_cast<size_t>(Metric::kRequestPromptTokens)].buckets;
  ASSERT_EQ(buckets.size(), 19U);
  EXPECT_EQ(buckets[0], 1);
  EXPECT_EQ(buckets[3], 10);
  EXPECT_EQ(buckets.back(), 1e6);
}

}  // namespace
}  // namespace quire
