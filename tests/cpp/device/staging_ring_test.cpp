#include "device/staging_ring.h"

#include <gtest/gtest.h>

#include <numeric>

#include "device/fake_device_runtime.h"
#include "quire/error.h"

namespace quire {
namespace {

constexpr size_t kBytesPerStep = 256;
constexpr int32_t kNumSteps = 2;

class StagingRingTest : public testing::TestWithParam<bool> {
 protected:
  StagingRingTest() {
    if (GetParam()) device_.hurries.emplace(3);
    stream_ = make_stream(runtime_);
  }
  // A kernel that reads `count` values and keeps them.
  void read_later(const int32_t* device, size_t count) {
    FakeDeviceRuntime::enqueue(stream_.get(),
                               [this, device, count] { seen_.assign(device, device + count); });
  }
  // Pushes `count` values, from `first` on, and does not send them.
  Staged<int32_t> push(int32_t first, size_t count) {
    const auto staged = ring_.push<int32_t>(count);
    std::iota(staged.host, staged.host + count, first);
    return staged;
  }
  void synchronize() { check_device(runtime_, runtime_.synchronize_stream(stream_.get()), "synchronize"); }

  FakeDevice& device_ = FakeDeviceRuntime::reset();
  const DeviceRuntime& runtime_ = FakeDeviceRuntime::table();
  DeviceStream stream_;
  std::vector<std::byte> memory_ =
      std::vector<std::byte>(StagingRing::device_bytes(kBytesPerStep, kNumSteps));
  std::vector<int32_t> seen_;
  StagingRing ring_{runtime_, memory_.data(), kBytesPerStep, kNumSteps};
};

std::vector<int32_t> from(int32_t first, size_t count) {
  std::vector<int32_t> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

TEST(StagingMeterTest, CountsWhatARingTakes) {
  FakeDeviceRuntime::reset();
  const DeviceRuntime& runtime = FakeDeviceRuntime::table();
  const auto push_all = [](auto& staging) {
    staging.template push<int32_t>(5);
    staging.template push<int64_t>(3);
    staging.template push<float>(0);
    staging.template push<std::byte>(1);
  };
  StagingMeter meter;
  push_all(meter);
  EXPECT_EQ(meter.bytes(), 32U + 32U + 0U + 16U);
  std::vector<std::byte> memory(meter.bytes());
  StagingRing ring(runtime, memory.data(), meter.bytes(), 1);
  ring.begin_step();
  push_all(ring);
  EXPECT_EQ(ring.available(), 0U);
}

TEST_P(StagingRingTest, WhatIsEnqueuedAfterSendSeesWhatWasPushed) {
  ring_.begin_step();
  const auto first = push(1, 5);
  const auto second = ring_.push<int64_t>(2);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(second.host) % 16, 0U);
  EXPECT_EQ(reinterpret_cast<std::byte*>(second.device) - memory_.data(), 256 + 32);  // 20 bytes, to 16
  second.host[0] = 70;
  second.host[1] = 71;
  ring_.send(stream_.get());
  read_later(first.device, 5);
  // More of the same step is a copy of its own.
  const auto third = push(100, 3);
  ring_.send(stream_.get());
  synchronize();
  EXPECT_EQ(seen_, from(1, 5));
  EXPECT_EQ(second.device[1], 71);
  EXPECT_EQ(std::vector<int32_t>(third.device, third.device + 3), from(100, 3));
}

TEST_P(StagingRingTest, AKernelMayBringWhatIsNotSentYet) {
  ring_.begin_step();
  const auto sent = push(1, 2);
  ring_.send(stream_.get());
  const auto brought = push(10, 5);
  EXPECT_EQ(ring_.num_unsent(), 32U);  // 20 bytes, to 16
  const PinnedBytes bytes = ring_.take_unsent();
  EXPECT_EQ(bytes.to, brought.device);
  EXPECT_EQ(bytes.from, brought.host);
  EXPECT_EQ(bytes.count, 32U);
  EXPECT_EQ(ring_.take_unsent().count, 0U);
  ring_.send(stream_.get());  // nothing is left
  synchronize();
  EXPECT_EQ(std::vector<int32_t>(sent.device, sent.device + 2), from(1, 2));
  EXPECT_NE(brought.device[0], 10);
}

TEST_P(StagingRingTest, EachStepInFlightHasAPlaceOfItsOwn) {
  std::vector<std::vector<int32_t>> all(20);
  for (int32_t step = 0; step < 20; ++step) {
    if (step % kNumSteps == 0) synchronize();
    ring_.begin_step();
    const auto values = push(step * 10, 8);
    ring_.send(stream_.get());
    auto& seen = all[static_cast<size_t>(step)];
    FakeDeviceRuntime::enqueue(stream_.get(),
                               [&seen, values] { seen.assign(values.device, values.device + 8); });
  }
  synchronize();
  for (int32_t step = 0; step < 20; ++step) EXPECT_EQ(all[static_cast<size_t>(step)], from(step * 10, 8));
}

TEST_P(StagingRingTest, RoundsOfOneStepShareTheRoom) {
  ring_.begin_step();
  const auto kept = push(1, 4);
  ring_.send(stream_.get());
  const size_t mark = ring_.mark();
  EXPECT_EQ(ring_.available(), kBytesPerStep - 16);
  std::vector<int32_t> sums;
  for (int32_t round = 0; round < 5; ++round) {
    const auto values = push(round * 1000, 60);  // all that is left
    EXPECT_EQ(ring_.available(), 0U);
    ring_.send(stream_.get());
    FakeDeviceRuntime::enqueue(stream_.get(), [&sums, values, kept] {
      sums.push_back(values.device[0] + values.device[59] + kept.device[3]);
    });
    ring_.rewind(mark, stream_.get());
  }
  synchronize();
  EXPECT_EQ(sums, (std::vector<int32_t>{63, 2063, 4063, 6063, 8063}));
}

TEST_P(StagingRingTest, MoreThanAStepsRoomIsOurOwnMistake) {
  ring_.begin_step();
  ring_.push<int32_t>(40);
  EXPECT_THROW(ring_.push<int32_t>(25), InternalError);
  EXPECT_EQ(ring_.available(), 96U);
  ring_.push<int32_t>(24);
  EXPECT_THROW(ring_.push<std::byte>(1), InternalError);
  EXPECT_THROW(ring_.rewind(0, stream_.get()), InternalError);  // not sent
  ring_.begin_step();
  EXPECT_EQ(ring_.available(), kBytesPerStep);
}

TEST_P(StagingRingTest, GivesEverythingBack) {
  const int handles = device_.num_handles, allocations = device_.num_allocations;
  {
    const StagingRing ring(runtime_, memory_.data(), kBytesPerStep, kNumSteps);
  }
  EXPECT_EQ(device_.num_handles, handles);
  EXPECT_EQ(device_.num_allocations, allocations);
}

INSTANTIATE_TEST_SUITE_P(Orders, StagingRingTest, testing::Values(false, true),
                         [](const auto& info) { return info.param ? "hurried" : "late"; });

}  // namespace
}  // namespace quire
