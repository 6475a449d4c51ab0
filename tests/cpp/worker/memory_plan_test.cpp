#include "worker/memory_plan.h"

#include <gtest/gtest.h>

#include "quire/error.h"
#include "util/error_of.h"

namespace quire {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kTotal = 80'000 * kMiB;

DeviceMemoryPlan plan() {
  DeviceMemoryPlan plan;
  plan.weights = 1000 * kMiB;
  plan.workspace = 200 * kMiB;
  plan.activations = 30 * kMiB;
  plan.batch = 4 * kMiB;
  plan.graphs = 300 * kMiB;
  return plan;
}
constexpr size_t kRest = 1534 * kMiB;  // all of the above

EngineConfig share(double utilization) {
  EngineConfig config;
  config.gpu_memory_utilization = utilization;
  return config;
}
EngineConfig exactly(size_t bytes) {
  EngineConfig config;
  config.gpu_memory_bytes = static_cast<int64_t>(bytes);
  return config;
}

TEST(MemoryPlanTest, TheKVCacheGetsWhatTheBudgetLeaves) {
  DeviceMemoryPlan a = plan();
  a.set_budget(share(0.5), kTotal, kTotal);
  EXPECT_EQ(a.kv_cache, 40'000 * kMiB - kRest);
  // The graphs are counted, and not taken with the rest.
  EXPECT_EQ(a.arena_bytes(), 40'000 * kMiB - 300 * kMiB);

  DeviceMemoryPlan b = plan();
  b.set_budget(exactly(2000 * kMiB + 5), kTotal, kTotal);
  EXPECT_EQ(b.kv_cache, 466 * kMiB);  // whole megabytes
}

TEST(MemoryPlanTest, AHostHasToHoldAllButTheKVCache) {
  DeviceMemoryPlan a = plan();
  a.graphs = 0;
  a.kv_cache = 500 * kMiB;
  EXPECT_NO_THROW(a.check_host(1234 * kMiB));
  const std::string error = error_of<ResourceExhausted>([&] { a.check_host(1234 * kMiB - 1); });
  EXPECT_NE(error.find("the model does not fit: weights 0.98 GiB"), std::string::npos) << error;
  EXPECT_NE(error.find("and 1.21 GiB of memory are free: free some"), std::string::npos) << error;
}

// What ranks exchange through is a part of the budget, and of what is no longer free.
TEST(MemoryPlanTest, TheExchangeIsTakenAlready) {
  DeviceMemoryPlan a = plan();
  a.exchange = 32 * kMiB;
  a.set_budget(share(0.5), kTotal - 32 * kMiB, kTotal);
  EXPECT_EQ(a.kv_cache, 40'000 * kMiB - kRest - 32 * kMiB);
  EXPECT_EQ(a.arena_bytes(), 40'000 * kMiB - 332 * kMiB);
  a.set_budget(exactly(2000 * kMiB), 1968 * kMiB, kTotal);
  EXPECT_EQ(a.kv_cache, 434 * kMiB);
}

TEST(MemoryPlanTest, ANeighbourLeavesLess) {
  DeviceMemoryPlan a = plan();
  a.set_budget(share(0.5), 3000 * kMiB, kTotal);
  EXPECT_EQ(a.kv_cache, 3000 * kMiB - kRest);
  // Asked again, with less: nothing is left of the first answer.
  a.set_budget(share(0.5), 2534 * kMiB, kTotal);
  EXPECT_EQ(a.kv_cache, 1000 * kMiB);
  // More than was asked for is not taken.
  a.set_budget(share(0.05), 10'000 * kMiB, kTotal);
  EXPECT_EQ(a.kv_cache, 4000 * kMiB - kRest);
}

template <typename Error>
std::string refusal(DeviceMemoryPlan plan, const EngineConfig& config, size_t free) {
  return error_of<Error>([&] { plan.set_budget(config, free, kTotal); });
}

TEST(MemoryPlanTest, MoreBytesThanThereAreIsTheCallersMistake) {
  const std::string text = refusal<InvalidArgument>(plan(), exactly(3000 * kMiB), 3000 * kMiB - 1);
  EXPECT_NE(text.find("gpu_memory_bytes 3145728000 is more than the 3145727999 bytes"), std::string::npos)
      << text;
  DeviceMemoryPlan all = plan();
  all.set_budget(exactly(3000 * kMiB), 3000 * kMiB, kTotal);
  EXPECT_EQ(all.kv_cache, 3000 * kMiB - kRest);
}

TEST(MemoryPlanTest, AModelThatDoesNotFitIsRefusedWithItsParts) {
  for (const size_t budget : {size_t{1}, kRest - kMiB, kRest, kRest + kMiB - 1}) {
    const std::string text = refusal<ResourceExhausted>(plan(), exactly(budget), kTotal);
    EXPECT_NE(text.find("weights 0.98 GiB"), std::string::npos) << text;
    EXPECT_NE(text.find("gpu_memory_utilization"), std::string::npos) << text;
  }
  DeviceMemoryPlan least = plan();
  least.set_budget(exactly(kRest + kMiB), kTotal, kTotal);
  EXPECT_EQ(least.kv_cache, kMiB);
  // A neighbour may take so much that nothing is left.
  EXPECT_NE(refusal<ResourceExhausted>(plan(), share(0.9), kRest).find("does not fit"), std::string::npos);
  EXPECT_NE(refusal<ResourceExhausted>(plan(), share(0.9), 0).find("does not fit"), std::string::npos);
}

TEST(MemoryPlanTest, LayersOfEqualDemandsShareAGroupsBlockSize) {
  KVCacheSpec wide;
  wide.block_size = 16;
  KVCacheSpec narrow = wide;
  narrow.block_size = 32;
  KVCacheSpec window = wide;
  window.sliding_window = 100;
  EXPECT_EQ(group_block_sizes(std::vector{wide, narrow, wide, window, narrow}),
            (std::vector<int32_t>{16, 32, 16}));
}

}  // namespace
}  // namespace quire
