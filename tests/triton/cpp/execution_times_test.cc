#include "execution_times.h"

#include <gtest/gtest.h>

namespace quire::triton {
namespace {

RequestMetrics computed(double first_scheduled, double last_token) {
  RequestMetrics metrics;
  metrics.first_scheduled_time = first_scheduled;
  metrics.last_token_time = last_token;
  return metrics;
}

void expect_times(const ExecutionTimes& times, uint64_t exec_start, uint64_t compute_start,
                  uint64_t compute_end) {
  EXPECT_EQ(times.exec_start, exec_start);
  EXPECT_EQ(times.compute_start, compute_start);
  EXPECT_EQ(times.compute_end, compute_end);
}

constexpr uint64_t kSecond = 1'000'000'000;

TEST(ExecutionTimesTest, InputComesBeforeTheFirstStep) {
  expect_times(execution_times(10 * kSecond, 11 * kSecond, 20 * kSecond, computed(15, 19)), 14 * kSecond,
               15 * kSecond, 19 * kSecond);
}

TEST(ExecutionTimesTest, AThreadThatNotesTheSubmissionLateTakesNothingFromComputing) {
  for (const uint64_t submitted : {uint64_t{0}, 12 * kSecond, 13 * kSecond}) {
    const ExecutionTimes times = execution_times(10 * kSecond, submitted, 13 * kSecond, computed(10.5, 12));
    EXPECT_EQ(times.compute_end - times.compute_start, 3 * kSecond / 2) << submitted;
    EXPECT_GE(times.exec_start, 10 * kSecond);
  }
}

TEST(ExecutionTimesTest, WhatWasNeverComputedEndsNow) {
  expect_times(execution_times(10 * kSecond, 11 * kSecond, 12 * kSecond, {}), 11 * kSecond, 12 * kSecond,
               12 * kSecond);
}

}  // namespace
}  // namespace quire::triton
