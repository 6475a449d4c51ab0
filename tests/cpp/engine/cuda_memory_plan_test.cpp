// Plans against engines on a device.
#include <optional>

#include "engine/cuda_fixture.h"
#include "quire/kernels/device_runtime.h"
#include "quire/memory_plan.h"
#include "weights/model_directory.h"

namespace quire {
namespace {

class CudaMemoryPlanTest : public CudaEngineTest {
 protected:
  static size_t free_bytes() {
    const DeviceRuntime* runtime = find_device_runtime("cuda");
    size_t free = 0, total = 0;
    runtime->select(0);
    runtime->memory_info(&free, &total);
    return free;
  }
  static void expect_as_planned(const EngineConfig& config) {
    const MemoryPlan plan = plan_memory(config, find_planned_device(config));
    ASSERT_TRUE(plan.fits()) << plan.problem;
    {
      const Engine first(config);
    }  // what the driver and its libraries keep
    const size_t before = free_bytes();
    std::optional<Engine> engine(config);
    const auto taken = static_cast<double>(before - free_bytes());
    const RankMemory memory = engine->model().memory;
    EXPECT_EQ(plan.memory, memory) << memory_table(plan.memory) << memory_table(memory);
    EXPECT_EQ(plan.num_blocks - 1, engine->stats().num_total_blocks);
    // Graphs are set aside for, and take less.
    const auto planned = static_cast<double>(plan.memory.total());
    EXPECT_LT(taken, planned * 1.01);
    EXPECT_GT(taken, (planned - static_cast<double>(plan.memory.graphs)) * 0.99);
    GTEST_LOG_(INFO) << "planned " << planned << " bytes, taken " << taken;
  }
};

TEST_F(CudaMemoryPlanTest, TheDemoModelsEngineTakesWhatWasPlanned) { expect_as_planned(demo_config("cuda")); }

TEST_F(CudaMemoryPlanTest, AShareOfTheDevice) {
  EngineConfig config = demo_config("cuda", "bfloat16");
  config.gpu_memory_bytes = 0;
  config.gpu_memory_utilization = 0.5;
  config.kv_cache_memory_bytes = 0;
  config.enforce_eager = true;
  expect_as_planned(config);
}

TEST_F(CudaMemoryPlanTest, AModelOf8BillionParameters) {
  const ModelDirectory directory;
  directory.write("config.json",
                  R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 128256, "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": false,
    "torch_dtype": "bfloat16"})");
  EngineConfig config;
  config.model = directory.path();
  config.device = "cuda";
  config.load_format = "dummy";
  config.skip_tokenizer_init = true;
  config.gpu_memory_utilization = 0.6;
  expect_as_planned(config);
}

}  // namespace
}  // namespace quire
