// What host and device do differently for a worker.
#include "worker/platform.h"

#include <gtest/gtest.h>

#include <utility>

#include "device/fake_kernels.h"
#include "kv_cache/kv_arena.h"
#include "quire/error.h"
#include "util/error_of.h"

namespace quire {
namespace {

constexpr size_t kMegabyte = size_t{1} << 20;

// Two layers of 512 bytes a block.
KVCacheConfig small_cache(int32_t num_blocks) {
  KVCacheConfig config;
  KVCacheGroup& group = config.groups.emplace_back();
  group.spec.block_size = 16;
  group.spec.page_bytes = 512;
  group.layers = {0, 1};
  group.num_blocks = num_blocks;
  return config;
}

class PlatformTest : public testing::Test {
 protected:
  FakeDevice& device_ = FakeDeviceRuntime::reset();
  KernelTable ops_ = fake_kernel_table();
  std::unique_ptr<Platform> host_ = make_platform({&fake::cpu(), nullptr, 0}, 1);
  std::unique_ptr<Platform> on_device_ = make_platform({&ops_, &FakeDeviceRuntime::table(), 0}, 1);
};

TEST_F(PlatformTest, OnlyADeviceHasARuntimeAndAStream) {
  EXPECT_EQ(host_->runtime(), nullptr);
  EXPECT_EQ(host_->launch().stream, nullptr);
  EXPECT_EQ(on_device_->runtime(), &FakeDeviceRuntime::table());
  EXPECT_NE(on_device_->launch().stream, nullptr);
}

TEST_F(PlatformTest, ADevicesMemoryIsMeasuredAndTakenAtOnceAndTheHostsAsItIsNeeded) {
  device_.free_bytes = 1000 * kMegabyte;
  int num_measured = 0;
  const auto measure = [&num_measured] {
    ++num_measured;
    DeviceMemoryPlan plan;
    plan.weights = 100 * kMegabyte;
    return plan;
  };
  EngineConfig config;
  config.gpu_memory_utilization = 0.5;
  const WorkerMemory host_memory = host_->make_memory(config, measure);
  EXPECT_EQ(std::exchange(num_measured, 0), 1);
  EXPECT_EQ(device_.free_bytes, 1000 * kMegabyte);
  const WorkerMemory memory = on_device_->make_memory(config, measure);
  EXPECT_EQ(num_measured, 1);
  EXPECT_EQ(memory.weights->remaining(), 100 * kMegabyte);
  EXPECT_EQ(memory.kv_cache->remaining(), 400 * kMegabyte);
  EXPECT_EQ(device_.free_bytes, 500 * kMegabyte);
}

TEST_F(PlatformTest, ADevicesKVCacheHasWhatTheRestLeaves) {
  WorkerMemory memory;
  memory.kv_cache = make_device_arena(FakeDeviceRuntime::table(), 6144);
  EXPECT_EQ(on_device_->available_kv_cache_bytes(memory, /*world_size=*/1), 6144);
  EXPECT_EQ(on_device_->available_kv_cache_bytes(memory, /*world_size=*/2), 6144) << "its own device's";
  const std::string error = error_of([&] { on_device_->allocate_kv_cache(small_cache(7), memory); });
  EXPECT_NE(error.find("kv_cache_memory_bytes 7168 is more than the 6144 bytes"), std::string::npos) << error;
  const auto first_blocks = on_device_->allocate_kv_cache(small_cache(6), memory);
  ASSERT_EQ(first_blocks.size(), 1U);
  EXPECT_EQ(memory.kv_cache->remaining(), 0U);
}

TEST_F(PlatformTest, ADevicesWeightsAndKVCacheComeAndGoApart) {
  device_.free_bytes = 400 * kMegabyte;
  EngineConfig config;
  config.gpu_memory_utilization = 1.0;
  WorkerMemory memory = on_device_->make_memory(config, [] {
    DeviceMemoryPlan plan;
    plan.weights = 100 * kMegabyte;
    return plan;
  });
  std::byte* weights = memory.weights->allocate(1000);
  weights[999] = std::byte{7};
  on_device_->discard_kv_cache(memory);
  const size_t left = device_.free_bytes;
  EXPECT_EQ(left, 300 * kMegabyte);
  const Buffer saved = on_device_->copy_to_host(*memory.weights);
  memory.weights->discard();
  memory.weights->discard();
  EXPECT_EQ(device_.free_bytes, left + 100 * kMegabyte);
  device_.free_bytes -= left + 1;  // somebody else's
  EXPECT_THROW(memory.weights->restore(), ResourceExhausted);
  device_.free_bytes += left + 1;
  memory.weights->restore();
  on_device_->copy_from_host(*memory.weights, saved);
  EXPECT_EQ(weights[999], std::byte{7});
  on_device_->restore_kv_cache(memory);
  EXPECT_EQ(device_.free_bytes, left - memory.kv_cache->remaining());
  EXPECT_EQ(host_->copy_to_host(*make_host_arena()).size(), 0U) << "it is there already";
}

TEST_F(PlatformTest, AHostRefusesWhatItCannotHoldBeforeAnyOfItIsLoaded) {
  DeviceMemoryPlan plan;
  plan.weights = size_t{1} << 50;
  testing::internal::CaptureStderr();
  const std::string error =
      error_of<ResourceExhausted>([&] { host_->make_memory({}, [&] { return plan; }); });
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(error.find("the model does not fit: weights 1048576.00 GiB"), std::string::npos) << error;
  EXPECT_NE(log.find("weights"), std::string::npos) << log;
  EXPECT_NE(log.find("100.0 %"), std::string::npos) << log;
}

TEST_F(PlatformTest, AKVCacheThatCannotBeHadNamesWhatAsksForIt) {
  WorkerMemory memory = host_->make_memory({}, nullptr);
  KVCacheConfig config = small_cache(2'000'000'000);
  config.groups[0].spec.page_bytes = 1 << 20;
  const std::string error = error_of<ResourceExhausted>([&] { host_->allocate_kv_cache(config, memory); });
  EXPECT_NE(error.find("a KV cache of 2000000000 blocks: cannot allocate"), std::string::npos) << error;
  EXPECT_NE(error.find("lower num_gpu_blocks_override or kv_cache_memory_bytes"), std::string::npos) << error;
}

TEST_F(PlatformTest, RanksShareTheHostsMemory) {
  const WorkerMemory memory = host_->make_memory({}, nullptr);
  const int64_t alone = host_->available_kv_cache_bytes(memory, /*world_size=*/1);
  EXPECT_GT(alone, 0);
  EXPECT_LE(alone, int64_t{4} << 30);
  EXPECT_LE(host_->available_kv_cache_bytes(memory, /*world_size=*/4), int64_t{1} << 30);
}

TEST_F(PlatformTest, OnlyTheHostsKVCacheCanBeInAnArena) {
  EngineConfig config;
  config.kv_arena = std::make_shared<KVArena>(1 << 20);
  EXPECT_NO_THROW(host_->make_memory(config, nullptr));
  EXPECT_TRUE(host_->maps_kv_cache_on_demand());
  EXPECT_THROW(on_device_->make_memory(config, nullptr), InvalidArgument);
  EXPECT_FALSE(on_device_->maps_kv_cache_on_demand());
}

TEST_F(PlatformTest, TheHostsBlocksLoseTheirMemoryWhenExtentsSaySo) {
  constexpr int32_t kBlocks = 4097;  // 4 MiB, and block 0
  KVCacheConfig config = small_cache(kBlocks);
  config.groups[0].blocks_per_extent = 4096;
  WorkerMemory memory = host_->make_memory({}, nullptr);
  std::byte* block_1 = host_->allocate_kv_cache(config, memory).at(0) + 1024;
  block_1[0] = std::byte{7};
  const KVExtent lost[] = {{.group = 0, .first_block = 1, .num_blocks = 4096, .map = 0}};
  host_->apply(lost);
  EXPECT_EQ(block_1[0], std::byte{0});
  block_1[0] = std::byte{7};
  host_->discard_kv_cache(memory);
  host_->restore_kv_cache(memory);
  EXPECT_EQ(block_1[0], std::byte{0});
}

TEST_F(PlatformTest, AFailedLaunchIsToldUntilTheNextStepAndADeviceThatIsLostForGood) {
  const LaunchContext& launch = on_device_->launch();
  on_device_->check();
  launch.error->failed = true;
  EXPECT_THROW(on_device_->check(), InternalError);
  EXPECT_EQ(on_device_->loss(), "");
  on_device_->begin_step();
  on_device_->check();
  // The fake breaks when a stream is waited for that is being captured.
  const DeviceRuntime& runtime = FakeDeviceRuntime::table();
  ASSERT_EQ(runtime.begin_capture(launch.stream), 0);
  EXPECT_EQ(on_device_->loss(), "it broke");
  void* graph = nullptr;
  ASSERT_EQ(runtime.end_capture(launch.stream, &graph), 0);
  runtime.destroy_graph(graph);
  EXPECT_EQ(host_->loss(), "");
}

}  // namespace
}  // namespace quire
