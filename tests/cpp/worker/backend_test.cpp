#include "worker/backend.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

// Of a device with so much memory; 0: the host.
StepLimits limits(const EngineConfig& config, int64_t gib, int32_t max_model_len = 4096) {
  static const DeviceRuntime runtime{};
  Backend backend;
  backend.runtime = gib > 0 ? &runtime : nullptr;
  backend.memory_bytes = gib * kGiB;
  return step_limits(config, backend, max_model_len);
}

void expect_limits(const StepLimits& limits, int32_t max_num_seqs, int32_t max_num_batched_tokens) {
  EXPECT_EQ(limits.max_num_seqs, max_num_seqs);
  EXPECT_EQ(limits.max_num_batched_tokens, max_num_batched_tokens);
}

TEST(StepLimitsTest, LeftOpenTheyAreTheDevices) {
  const EngineConfig config;
  expect_limits(limits(config, 0), 64, 2048);
  expect_limits(limits(config, 24), 256, 2048);
  expect_limits(limits(config, 79), 1024, 8192);
  expect_limits(limits(config, 139), 1024, 8192);
}

TEST(StepLimitsTest, WhatIsSaidHolds) {
  EngineConfig config;
  config.max_num_seqs = 7;
  config.max_num_batched_tokens = 100;
  for (const int64_t gib : {0, 24, 139}) expect_limits(limits(config, gib, 1 << 24), 7, 100);
}

TEST(StepLimitsTest, WhatIsLeftOpenFitsWhatIsSaid) {
  EngineConfig config;
  config.max_num_batched_tokens = 600;
  expect_limits(limits(config, 139), 600, 600);
  config.max_num_batched_tokens = 20;
  expect_limits(limits(config, 0), 20, 20);
  config = {};
  config.max_num_seqs = 4096;
  expect_limits(limits(config, 0), 4096, 4096);
  expect_limits(limits(config, 139), 4096, 8192);
  config = {};
  config.enable_chunked_prefill = false;
  expect_limits(limits(config, 139, 30000), 1024, 30000);
  expect_limits(limits(config, 139, 100), 1024, 8192);
}

// What the device keeps of each request's tokens.
TEST(StepLimitsTest, LongSequencesAreFewer) {
  const EngineConfig config;
  expect_limits(limits(config, 139, 1 << 18), 1024, 8192);
  expect_limits(limits(config, 139, 1 << 20), 256, 8192);
  expect_limits(limits(config, 139, 10 << 20), 64, 8192);
  expect_limits(limits(config, 0, 10 << 20), 64, 2048);
}

}  // namespace
}  // namespace quire
