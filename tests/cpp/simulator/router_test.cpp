#include "simulator/router.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "quire/error.h"

namespace quire {
namespace {

std::vector<int32_t> prompt(int32_t first_token, size_t num_tokens) {
  std::vector<int32_t> tokens(num_tokens);
  std::iota(tokens.begin(), tokens.end(), first_token);
  return tokens;
}

RouterOptions prefix_aware() {
  RouterOptions options;
  options.policy = "prefix_aware";
  options.chunk_size = 4;
  options.max_load_factor = 2.0;
  return options;
}

TEST(RouterTest, LeastLoadedTakesTheFirstOfTheIdlest) {
  FleetLoad load(3);
  load.set(0, 5);
  const auto router = make_router({.policy = "least_loaded"}, 3);
  EXPECT_EQ(router->route({}, load), 1U);
  load.set(1, 6);
  load.set(2, 9);
  EXPECT_EQ(router->route({}, load), 0U);
}

TEST(RouterTest, PrefixAwareReturnsToTheEngineWithTheLongestPrefix) {
  FleetLoad load(3);
  const auto router = make_router(prefix_aware(), 3);
  EXPECT_EQ(router->route(prompt(0, 8), load), 0U);
  load.set(0, 10);
  load.set(2, 1);
  EXPECT_EQ(router->route(prompt(100, 8), load), 1U);
  load.set(1, 10);
  EXPECT_EQ(router->route(prompt(0, 12), load), 0U);    // two chunks are known there
  EXPECT_EQ(router->route(prompt(100, 5), load), 1U);   // one chunk is
  EXPECT_EQ(router->route(prompt(200, 40), load), 2U);  // none: the least loaded
}

TEST(RouterTest, PrefixAwarePassesOverAnOverloadedEngine) {
  FleetLoad load(4);
  const auto router = make_router(prefix_aware(), 4);
  EXPECT_EQ(router->route(prompt(0, 8), load), 0U);
  load.set(0, 90);  // the mean is 25, and twice that the limit
  load.set(1, 10);
  EXPECT_EQ(router->route(prompt(0, 8), load), 2U);
  load.set(2, 10);
  EXPECT_EQ(router->route(prompt(0, 8), load), 2U);  // both have it now
  load.set(0, 0);
  EXPECT_EQ(router->route(prompt(0, 8), load), 0U);
}

TEST(RouterTest, PrefixAwareForgetsWhatWasNotUsedForLong) {
  RouterOptions options = prefix_aware();
  options.max_chunks = 4;
  FleetLoad load(2);
  const auto router = make_router(options, 2);
  EXPECT_EQ(router->route(prompt(0, 8), load), 0U);
  load.set(0, 1);
  for (int32_t i = 1; i < 10; ++i) router->route(prompt(1000 * i, 8), load);
  EXPECT_EQ(router->route(prompt(0, 8), load), 1U);
}

TEST(RouterTest, AnUnknownPolicyIsRefused) {
  EXPECT_THROW(make_router({.policy = "random"}, 2), InvalidArgument);
}

}  // namespace
}  // namespace quire
