// On a device that does nothing before somebody waits for it.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "device/fake_device_runtime.h"
#include "worker/lora_memory.h"
#include "worker/lora_rig.h"

namespace quire {
namespace {

constexpr const char* kName = "model.layers.0.self_attn.q_proj";

class DeviceLoraMemoryTest : public testing::Test {
 protected:
  static constexpr int64_t kInputs = 8, kOutputs = 8, kRank = 8;

  void SetUp() override {
    device = &FakeDeviceRuntime::reset();
    rig.add_target({{kName, kOutputs, 0, kOutputs}}, kInputs);
    stream = make_stream(runtime);
    arena = make_device_arena(runtime, size_t{1} << 20);
    memory = make_device_lora_memory(rig.targets, runtime, stream.get(), rig.dtype, *arena);
  }
  // Every value of its first matrix is `value`.
  std::shared_ptr<const LoraWeights> adapter(float value) {
    LoraValues module = random_lora(kName, kInputs, kOutputs, kRank);
    module.a.assign(module.a.size(), value);
    const ModelDirectory directory;
    return std::make_shared<LoraWeights>(make_adapter(directory, {module}), rig.targets, rig.ops, &runtime,
                                         rig.dtype);
  }
  // A step that reads the slot. What it has read is there when it is over.
  const float* read(int32_t slot) {
    const std::vector<LoraSegment> segments = {{slot, 0, 1}};
    memory->begin_step(segments);
    auto* found = found_.emplace_back(std::make_unique<float>(0.0F)).get();
    FakeDeviceRuntime::enqueue(
        stream.get(), [this, slot, found] { std::memcpy(found, memory->table()[slot].a, sizeof(float)); });
    memory->end_step(segments);
    return found;
  }
  void run_steps() { check_device(runtime, runtime.synchronize_stream(stream.get()), "running steps"); }

  FakeDevice* device = nullptr;
  const DeviceRuntime& runtime = FakeDeviceRuntime::table();
  LoraRig rig{/*max_loras=*/2};
  DeviceStream stream;
  std::unique_ptr<DeviceArena> arena;
  std::unique_ptr<LoraMemory> memory;
  std::vector<std::unique_ptr<float>> found_;
};

TEST_F(DeviceLoraMemoryTest, AStepWaitsForTheAdaptersThatItReadsAndForNoOthers) {
  memory->bring(0, adapter(3));
  const float* first = read(0);
  run_steps();
  EXPECT_EQ(*first, 3);
  memory->bring(1, adapter(5));
  const float* beside = read(0);
  run_steps();
  EXPECT_EQ(*beside, 3);
  EXPECT_EQ(memory->table()[1].a, nullptr);  // still on its way
  const float* second = read(1);
  run_steps();
  EXPECT_EQ(*second, 5);
}

TEST_F(DeviceLoraMemoryTest, StepsInFlightGoOnWithWhatLayThere) {
  for (const uint32_t seed : {1U, 2U, 3U, 4U}) {
    device->hurries.emplace(seed);
    float there[] = {-1, -2};
    for (const int32_t slot : {0, 1}) memory->bring(slot, adapter(there[slot]));
    std::vector<std::pair<const float*, float>> reads;
    for (int i = 1; i < 40; ++i) {
      const int32_t slot = i * 7 % 5 % 2;
      there[slot] = static_cast<float>(i);
      memory->bring(slot, adapter(there[slot]));
      if (i % 3 != 0) reads.emplace_back(read(i % 2), there[i % 2]);
    }
    run_steps();
    for (const auto& [found, expected] : reads) EXPECT_EQ(*found, expected);
  }
}

}  // namespace
}  // namespace quire
