// Engines whose ranks have a device each. Skipped where there are not two that reach each other.
#include <gtest/gtest.h>

#include <thread>

#include "engine/cuda_fixture.h"
#include "engine/lora_engine_rig.h"
#include "quire/error.h"
#include "quire/kernels/cuda_device.h"
#include "quire/kernels/device_runtime.h"

namespace quire {
namespace {

class CudaRanksTest : public CudaEngineTest {
 protected:
  void SetUp() override {
    CudaEngineTest::SetUp();
    if (IsSkipped()) return;
    if (cuda_kernel_table(1) != cuda_kernel_table(0)) GTEST_SKIP() << "fewer than two CUDA devices";
    bool can = false;
    ASSERT_EQ(find_device_runtime("cuda")->can_access_peer(&can, 0, 1), 0);
    if (!can) GTEST_SKIP() << "devices 0 and 1 do not reach each other";
  }

  static EngineConfig on_ranks(int32_t num_ranks, const std::string& dtype = "float32") {
    EngineConfig config = demo_config("cuda", dtype);
    config.tensor_parallel_size = num_ranks;
    return config;
  }
  static std::vector<EngineRequest> requests() {
    std::vector<EngineRequest> all;
    for (int i = 0; i < 30; ++i) {
      const char* prompts[] = {"Once upon a time", "The baker", "In the morning", "She opened the door and"};
      all.push_back(request(prompts[i % 4], 10 + 3 * i, i % 3 == 0 ? 1.0F : 0.0F));
      all.back().sampling_params.seed = 40 + i;
      // While these last, steps want all ranks' logits; those after them do not.
      if (i == 3 || i == 9) all.back().sampling_params.top_p = 0.9F;
    }
    return all;
  }
  static std::vector<std::vector<int32_t>> generate(Engine& engine) {
    std::vector<std::vector<int32_t>> tokens;
    for (const RequestOutput& output : engine.generate(requests())) {
      EXPECT_EQ(output.outputs.at(0).error, "");
      tokens.push_back(output.outputs.at(0).token_ids);
    }
    return tokens;
  }
};

TEST_F(CudaRanksTest, TwoDevicesGiveTheTokensOfOne) {
  Engine one(on_ranks(1));
  const auto expected = generate(one);
  for (const bool eager : {false, true}) {
    for (const bool async : {true, false}) {
      EngineConfig config = on_ranks(2);
      config.enforce_eager = eager;
      config.async_scheduling = async;
      Engine two(config);
      EXPECT_EQ(generate(two), expected) << "eager " << eager << " async " << async;
      EXPECT_EQ(generate(two), expected) << "again, from the prefix cache";
    }
  }
}

TEST_F(CudaRanksTest, ChunksOfPromptsGiveTheTokensOfOneDevice) {
  const auto tokens = [](int32_t num_ranks) {
    EngineConfig config = on_ranks(num_ranks);
    config.max_model_len = 1500;
    config.max_num_batched_tokens = 640;
    Engine engine(config);
    std::vector<std::vector<int32_t>> all;
    for (const RequestOutput& output : engine.generate(long_requests()))
      all.push_back(output.outputs.at(0).token_ids);
    return all;
  };
  EXPECT_EQ(tokens(2), tokens(1));
}

TEST_F(CudaRanksTest, EachDeviceHasItsShareOfAdapters) {
  const auto with_adapters = [](int32_t num_ranks, int32_t max_loras) {
    EngineConfig config = on_ranks(num_ranks);
    config.enable_lora = true;
    config.max_loras = max_loras;
    config.max_cpu_loras = 2;
    Engine engine(config);
    std::vector<EngineRequest> mixed = requests();
    for (const char* name : {"sailor", "json"}) engine.add_lora({name, 0, trained_adapter(name)});
    for (size_t i = 0; i < mixed.size(); ++i) {
      const char* names[] = {"sailor", "", "json"};
      mixed[i].lora_name = names[i % 3];
      mixed[i].sampling_params.temperature = 0;
    }
    std::vector<std::vector<int32_t>> tokens;
    for (const RequestOutput& output : engine.generate(std::move(mixed))) {
      EXPECT_EQ(output.outputs.at(0).error, "");
      tokens.push_back(output.outputs.at(0).token_ids);
    }
    return tokens;
  };
  const auto expected = with_adapters(1, 2);
  EXPECT_EQ(with_adapters(2, 2), expected);
  EXPECT_EQ(with_adapters(2, 1), expected) << "in one slot";
}

// Nothing else has the same sums.
TEST_F(CudaRanksTest, SixteenBitsAreTheSameEveryTime) {
  for (const char* dtype : {"bfloat16", "float16"}) {
    EngineConfig config = on_ranks(2, dtype);
    config.enable_prefix_caching = false;
    config.max_num_seqs = 1;
    Engine two(config);
    EXPECT_EQ(generate(two), generate(two)) << dtype;
  }
}

TEST_F(CudaRanksTest, EnginesMayShareTheirDevices) {
  Engine a(on_ranks(2)), b(on_ranks(2)), one(on_ranks(1));
  const auto expected = generate(one);
  std::vector<std::vector<int32_t>> of_a, of_b;
  std::thread other([&] { of_b = generate(b); });
  of_a = generate(a);
  other.join();
  EXPECT_EQ(of_a, expected);
  EXPECT_EQ(of_b, expected);
}

TEST_F(CudaRanksTest, RanksFollowTheFirstDevice) {
  if (cuda_device_count() < 3) GTEST_SKIP() << "fewer than three CUDA devices";
  EngineConfig config = on_ranks(2);
  config.device = "cuda:1";
  Engine shifted(config), one(on_ranks(1));
  EXPECT_EQ(generate(shifted), generate(one));
}

TEST_F(CudaRanksTest, TooFewDevicesAreRefused) {
  EngineConfig config = on_ranks(2);
  const int32_t last = cuda_device_count() - 1;
  config.device = "cuda:" + std::to_string(last);
  try {
    const Engine engine(config);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("tensor_parallel_size 2 needs the devices " + config.device),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace quire
