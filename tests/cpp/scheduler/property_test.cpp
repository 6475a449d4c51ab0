// Random operations on random configurations; scheduler_checker.h says what must hold.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "scheduler/scheduler_checker.h"
#include "util/sanitized.h"

namespace quire {
namespace {

constexpr uint32_t kNumSeeds = kSanitized ? 500 : 5000;

// To repeat one: QUIRE_PROPERTY_SEED=17.
TEST(SchedulerPropertyTest, WhatMustHoldHoldsAfterEveryOperation) {
  const char* one = std::getenv("QUIRE_PROPERTY_SEED");
  const uint32_t first = one ? static_cast<uint32_t>(std::atoi(one)) : 0;
  const uint32_t last = one ? first : kNumSeeds - 1;
  uint64_t num_finished = 0;
  uint64_t num_preemptions = 0;
  int num_failures = 0;
  for (uint32_t seed = first; seed <= last && num_failures < 5; ++seed) {
    std::mt19937 rng(seed);
    SchedulerChecker checker([&rng](uint32_t limit) { return static_cast<uint32_t>(rng() % limit); });
    try {
      for (int operation = 0; operation < 300; ++operation) checker.operate();
      checker.finish();
      num_finished += checker.num_finished();
      num_preemptions += checker.scheduler().stats().num_preemptions;
    } catch (const std::exception& error) {
      ADD_FAILURE() << "seed " << seed << ": " << error.what() << "\n" << checker.describe();
      ++num_failures;
    }
  }
  if (one) return;
  EXPECT_GT(num_finished, 20 * kNumSeeds);
  EXPECT_GT(num_preemptions, kNumSeeds / 3);
}

}  // namespace
}  // namespace quire
