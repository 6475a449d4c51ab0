#include "device/device_arena.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "device/activation_arena.h"
#include "device/fake_device_runtime.h"
#include "quire/error.h"
#include "util/error_of.h"

namespace quire {
namespace {

constexpr size_t kSizes[] = {1, 256, 257, 0, 100'000};
constexpr size_t kTotal = 256 + 256 + 512 + 0 + 100'096;

TEST(DeviceArenaTest, EveryKindCountsAlike) {
  FakeDeviceRuntime::reset();
  for (const auto& arena :
       {make_host_arena(), make_measuring_arena(), make_device_arena(FakeDeviceRuntime::table(), kTotal)}) {
    uintptr_t last = 0;
    for (const size_t bytes : kSizes) {
      const auto address = reinterpret_cast<uintptr_t>(arena->allocate(bytes));
      if (bytes == 0) continue;
      EXPECT_NE(address, 0U);
      EXPECT_NE(address, last);
      EXPECT_EQ(address % DeviceArena::kAlignment, 0U);
      last = address;
    }
    EXPECT_EQ(arena->used(), kTotal);
  }
}

TEST(DeviceArenaTest, HostMemoryIsZero) {
  const auto arena = make_host_arena();
  const std::byte* data = arena->allocate(5000);
  EXPECT_TRUE(std::all_of(data, data + 5000, [](std::byte b) { return b == std::byte{0}; }));
}

TEST(DeviceArenaTest, ADevicesMemoryIsOneBlockAndGoesBackWhole) {
  FakeDevice& device = FakeDeviceRuntime::reset();
  const size_t free_bytes = device.free_bytes;
  {
    const auto arena = make_device_arena(FakeDeviceRuntime::table(), 1024);
    EXPECT_EQ(device.free_bytes, free_bytes - 1024);
    std::byte* first = arena->allocate(300);
    EXPECT_EQ(arena->allocate(1), first + 512);
    EXPECT_EQ(arena->remaining(), 256U);
    EXPECT_EQ(device.num_allocations, 1);
  }
  EXPECT_EQ(device.free_bytes, free_bytes);
}

TEST(DeviceArenaTest, RunningOutNamesWhatWasAskedForAndWhatIsLeft) {
  FakeDeviceRuntime::reset();
  const auto arena = make_device_arena(FakeDeviceRuntime::table(), 1024);
  arena->allocate(300);
  for (const size_t bytes : {size_t{513}, ~size_t{0}}) {
    const std::string error = error_of<ResourceExhausted>([&] { arena->allocate(bytes); });
    EXPECT_NE(error.find("512 left"), std::string::npos) << error;
    EXPECT_NE(error.find(std::to_string(bytes)), std::string::npos) << error;
  }
  arena->allocate(512);
  EXPECT_EQ(arena->remaining(), 0U);
}

TEST(DeviceArenaTest, ADeviceWithoutTheMemorySaysWhatItHas) {
  FakeDeviceRuntime::reset().free_bytes = 1000;
  const std::string error =
      error_of<ResourceExhausted>([] { make_device_arena(FakeDeviceRuntime::table(), 1001); });
  EXPECT_NE(error.find("1001 bytes of device memory: out of memory (1000 of 1000"), std::string::npos)
      << error;
}

TEST(DeviceArenaTest, MemoryComesBackAtTheSameAddressesAndAReplayHandsThemOutAgain) {
  FakeDevice& device = FakeDeviceRuntime::reset();
  for (const auto& arena : {make_host_arena(), make_device_arena(FakeDeviceRuntime::table(), kTotal)}) {
    std::vector<std::byte*> places;
    for (const size_t bytes : kSizes) places.push_back(arena->allocate(bytes));
    places[4][99'999] = std::byte{7};
    const size_t free_bytes = device.free_bytes;
    arena->discard();
    if (arena->device_memory().data() != nullptr) {
      EXPECT_EQ(device.free_bytes, free_bytes + kTotal);
    } else {
      EXPECT_EQ(places[4][99'999], std::byte{0}) << "the last page, too";
    }
    arena->restore();
    EXPECT_EQ(device.free_bytes, free_bytes);
    const auto replay = make_replaying_arena(*arena);
    for (size_t i = 0; i < places.size(); ++i) EXPECT_EQ(replay->allocate(kSizes[i]), places[i]);
    EXPECT_EQ(replay->used(), kTotal);
    EXPECT_THROW(replay->allocate(1), InternalError);
    EXPECT_THROW(make_replaying_arena(*arena)->allocate(2), InternalError);
  }
}

TEST(ActivationArenaTest, LiesInMemoryItIsGiven) {
  const auto memory = make_host_arena();
  std::byte* data = memory->allocate(1024);
  ActivationArena arena(data, 1024);
  EXPECT_EQ(arena.take(DType::kBFloat16, 3, 5).data, data);
  const size_t mark = arena.mark();
  EXPECT_EQ(mark, ActivationArena::bytes(DType::kBFloat16, 15));
  EXPECT_EQ(arena.take(DType::kFloat32, 64).data, data + 256);
  EXPECT_THROW(arena.take(DType::kFloat32, 129), InternalError);
  arena.release(mark);
  EXPECT_EQ(arena.take(DType::kFloat32, 64).data, data + 256);
}

}  // namespace
}  // namespace quire
