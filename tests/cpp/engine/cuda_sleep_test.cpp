// Engines on a device that sleep: their memory goes back to it, and graphs find it where it was.
#include "engine/cuda_fixture.h"
#include "quire/kernels/device_runtime.h"

namespace quire {
namespace {

class CudaSleepTest : public CudaEngineTest {
 protected:
  static size_t free_bytes(int32_t device = 0) {
    const DeviceRuntime& runtime = *find_device_runtime("cuda");
    EXPECT_EQ(runtime.select(device), 0);
    size_t free = 0, total = 0;
    EXPECT_EQ(runtime.memory_info(&free, &total), 0);
    return free;
  }
  static std::vector<std::vector<int32_t>> answers(Engine& engine) {
    std::vector<std::vector<int32_t>> tokens;
    for (const RequestOutput& output : engine.generate({request("Once upon a time", 60), request("She", 40),
                                                        request("The baker said", 50, /*temperature=*/1)}))
      tokens.push_back(output.outputs.at(0).token_ids);
    return tokens;
  }
};

TEST_F(CudaSleepTest, MemoryGoesBackToTheDeviceAndGraphsGoOn) {
  EngineConfig config = demo_config("cuda", "bfloat16");
  config.kv_cache_memory_bytes = 0;  // all that is left of two gigabytes
  Engine engine(config);
  const auto expected = answers(engine);
  const size_t awake = free_bytes();
  for (const int32_t level : {1, 2, 1}) {
    const uint64_t num_graph_steps = engine.stats().num_full_graph_steps;
    EXPECT_GT(num_graph_steps, 0U);
    engine.sleep(level);
    // 14 MB of weights; activations, workspace and graphs stay.
    EXPECT_GT(free_bytes(), awake + (size_t{1} << 30)) << "level " << level;
    EXPECT_THROW(answers(engine), ResourceExhausted);
    engine.wake_up({"weights"});
    EXPECT_GT(free_bytes(), awake + (size_t{1} << 30)) << "level " << level;
    EXPECT_TRUE(engine.is_sleeping());
    engine.wake_up({"kv_cache"});
    EXPECT_LE(free_bytes(), awake + (size_t{32} << 20));
    EXPECT_EQ(answers(engine), expected) << "level " << level;
    EXPECT_GT(engine.stats().num_full_graph_steps, num_graph_steps);
  }
}

TEST_F(CudaSleepTest, AnotherEngineUsesTheMemoryMeanwhile) {
  EngineConfig config = demo_config("cuda");
  config.gpu_memory_bytes = 0;
  config.gpu_memory_utilization = 0.6;
  config.kv_cache_memory_bytes = 0;
  Engine sleeper(config);
  const auto expected = answers(sleeper);
  for (int i = 0; i < 2; ++i) {
    sleeper.sleep();
    {
      Engine other(config);
      EXPECT_EQ(answers(other), expected);
      EXPECT_THROW(sleeper.wake_up(), ResourceExhausted);
      EXPECT_TRUE(sleeper.is_sleeping());
    }
    sleeper.wake_up();
    EXPECT_EQ(answers(sleeper), expected);
  }
}

TEST_F(CudaSleepTest, NewWeightsAreSeenByGraphsThatAreThere) {
  EngineConfig config = demo_config("cuda", "bfloat16");
  const auto expected = [&config] {
    Engine engine(config);
    return answers(engine);
  }();
  config.load_format = "dummy";
  Engine engine(config);
  const auto random = answers(engine);
  EXPECT_NE(random, expected);
  const size_t free = free_bytes();
  engine.update_weights(QUIRE_DEMO_MODEL);
  EXPECT_EQ(answers(engine), expected);
  EXPECT_LE(free, free_bytes() + (size_t{32} << 20)) << "no memory was taken";
  engine.sleep(2);
  engine.update_weights(QUIRE_DEMO_MODEL);
  engine.wake_up();
  EXPECT_EQ(answers(engine), expected);
}

TEST_F(CudaSleepTest, RanksSleepTogether) {
  if (cuda_kernel_table(1) == nullptr) GTEST_SKIP() << "one device";
  EngineConfig config = demo_config("cuda:0");
  config.tensor_parallel_size = 2;
  config.kv_cache_memory_bytes = 0;
  Engine engine(config);
  const auto expected = answers(engine);
  for (const int32_t level : {1, 2}) {
    const size_t awake[] = {free_bytes(0), free_bytes(1)};
    engine.sleep(level);
    for (const int32_t device : {0, 1}) EXPECT_GT(free_bytes(device), awake[device] + (size_t{1} << 30));
    engine.wake_up();
    EXPECT_EQ(answers(engine), expected);
  }
}

}  // namespace
}  // namespace quire
