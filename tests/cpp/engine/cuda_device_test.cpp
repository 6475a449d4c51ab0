// What an engine does with its device: memory, graphs, and the end of it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>

#include "device/runtime_handles.h"
#include "engine/cuda_fixture.h"
#include "engine/fake_metric_sink.h"
#include "quire/error.h"

namespace quire {
namespace {

const DeviceRuntime& runtime() { return *find_device_runtime("cuda"); }

size_t free_bytes() {
  size_t free = 0, total = 0;
  runtime().synchronize();
  runtime().memory_info(&free, &total);
  return free;
}

class CudaDeviceTest : public CudaEngineTest {};

// The plan is all of the budget; what is taken may differ from it by one per cent.
TEST_F(CudaDeviceTest, TheBudgetIsWhatIsTaken) {
  {
    Engine loads_what_stays(demo_config("cuda", "bfloat16"));
  }
  for (const bool eager : {false, true}) {
    EngineConfig config = demo_config("cuda", "bfloat16");
    config.kv_cache_memory_bytes = 0;
    config.gpu_memory_bytes = int64_t{32} << 30;
    config.enforce_eager = eager;
    const size_t before = free_bytes();
    const Engine engine(config);
    const double taken = static_cast<double>(before - free_bytes());
    EXPECT_NEAR(taken / static_cast<double>(config.gpu_memory_bytes), 1.0, 0.01) << "eager " << eager;
  }
}

TEST_F(CudaDeviceTest, ANeighbourThatTookMemoryLeavesLess) {
  size_t free = 0, total = 0;
  ASSERT_EQ(runtime().memory_info(&free, &total), 0);
  void* neighbour = nullptr;
  ASSERT_EQ(runtime().allocate(&neighbour, free - (size_t{6} << 30)), 0);
  EngineConfig config = demo_config("cuda", "bfloat16");
  config.gpu_memory_bytes = 0;
  config.kv_cache_memory_bytes = 0;
  config.gpu_memory_utilization = 0.9;
  {
    Engine engine(config);  // much less than 90 % is free
    EXPECT_EQ(engine.generate({request("The baker", 5)}).at(0).outputs.at(0).token_ids.size(), 5U);
    runtime().release(neighbour);  // memory that comes free later changes nothing
    EXPECT_EQ(engine.generate({request("The baker", 5)}).at(0).outputs.at(0).token_ids.size(), 5U);
  }
}

// Batches of captured sizes, prompts and decodes alike: the same kernels on the same shapes, hence the same
// bits.
TEST_F(CudaDeviceTest, AReplayedGraphComputesTheSameBits) {
  for (const char* dtype : {"float32", "bfloat16", "float16"}) {
    for (const int num_rows : {1, 2, 8, 16}) {
      const auto run = [&](bool eager) {
        EngineConfig config = demo_config("cuda", dtype);
        config.enforce_eager = eager;
        config.enable_prefix_caching = false;
        LLMEngine engine(config);  // every request is there before the first step
        for (int i = 0; i < num_rows; ++i) {
          EngineRequest next = request("", 20);
          for (int token = 0; token < 8; ++token) next.prompt_token_ids.push_back(100 + 31 * i + 7 * token);
          next.sampling_params.logprobs = 20;
          next.sampling_params.output_kind = RequestOutputKind::kFinalOnly;
          next.request_id = std::to_string(i);
          engine.add_request(next);
        }
        std::map<std::string, std::vector<PositionLogprobs>> logprobs;
        while (engine.has_unfinished_requests()) {
          for (const RequestOutput& output : engine.step())
            logprobs[output.request_id] = output.outputs.at(0).logprobs;
        }
        EXPECT_EQ(engine.stats().num_full_graph_steps > 0, !eager);
        EXPECT_EQ(engine.stats().num_piecewise_graph_steps > 0, !eager);
        EXPECT_EQ(engine.stats().num_eager_steps, 0U);
        return logprobs;
      };
      EXPECT_TRUE(run(false) == run(true)) << dtype << ", " << num_rows << " rows";
    }
  }
}

TEST_F(CudaDeviceTest, StepsAreCountedByHowTheyWereLaunched) {
  EngineConfig config = demo_config("cuda", "bfloat16");
  config.max_num_batched_tokens = 1024;
  config.max_model_len = 2048;
  const auto sink = std::make_shared<FakeMetricSink>();
  config.metric_sink = sink;
  Engine engine(config);
  EngineRequest longer = request("", 3);
  longer.prompt_token_ids.assign(700, 7);  // more tokens than any graph takes
  engine.generate({longer});
  EngineStats stats = engine.stats();
  EXPECT_EQ(stats.num_eager_steps, 1U);
  EXPECT_GE(stats.num_full_graph_steps, 2U);
  EXPECT_EQ(stats.num_piecewise_graph_steps, 0U);
  engine.generate({request("The baker", 3)});
  stats = engine.stats();
  EXPECT_EQ(stats.num_piecewise_graph_steps, 1U);
  EXPECT_EQ(sink->counter(Metric::kCudagraphSteps, 0), static_cast<double>(stats.num_full_graph_steps));
  EXPECT_EQ(sink->counter(Metric::kCudagraphSteps, 1), 1);
  EXPECT_EQ(sink->counter(Metric::kCudagraphSteps, 2), 1);

  config.enforce_eager = true;
  config.metric_sink = nullptr;
  Engine eager(config);
  eager.generate({request("The baker", 3)});
  stats = eager.stats();
  EXPECT_EQ(stats.num_full_graph_steps + stats.num_piecewise_graph_steps + stats.num_eager_steps, 0U);
}

TEST_F(CudaDeviceTest, ChosenLinearsAreKeptOnDisk) {
  const auto directory = std::filesystem::temp_directory_path() / "quire-gemm-cache-test";
  std::filesystem::remove_all(directory);
  ::setenv("QUIRE_CACHE_DIR", directory.c_str(), 1);
  std::string prompt;  // of more tokens than the kernels of few rows take
  for (int i = 0; i < 20; ++i) prompt += "The baker ";
  const auto tokens = [&prompt] {
    Engine engine(demo_config("cuda", "bfloat16"));
    return engine.generate({request(prompt, 10)}).at(0).outputs.at(0).token_ids;
  };
  const auto expected = tokens();
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) files.push_back(entry.path());
  ASSERT_EQ(files.size(), 1U);
  EXPECT_NE(files[0].filename().string().find("cublaslt"), std::string::npos);
  const auto written = std::filesystem::last_write_time(files[0]);
  EXPECT_EQ(tokens(), expected);
  EXPECT_EQ(std::filesystem::last_write_time(files[0]), written);  // nothing was measured anew
  // What is not understood is measured again, not trusted.
  std::filesystem::resize_file(files[0], 100);
  EXPECT_EQ(tokens(), expected);
  EXPECT_GT(std::filesystem::file_size(files[0]), 100U);
  ::unsetenv("QUIRE_CACHE_DIR");
  std::filesystem::remove_all(directory);
}

// Runs in a process of its own: a device that has failed is lost to the process.
void lose_the_device() {
  std::string dead;
  EngineConfig config = demo_config("cuda", "bfloat16");
  config.on_dead = [&dead](const std::string& error) { dead = error; };
  Engine engine(config);
  if (engine.generate({request("The baker", 5)}).at(0).outputs.at(0).token_ids.size() != 5) std::exit(2);
  // A kernel that reads where nothing is.
  LaunchContext bad;
  std::vector<int32_t> nowhere(1 << 10);
  auto* far = reinterpret_cast<float*>(uintptr_t{1} << 44);
  cuda_kernel_table(0)->gather_rows(bad, {far, DType::kFloat32, 1, 256}, {far, DType::kFloat32, 1, 256},
                                    {far, DType::kInt32, 1});
  const auto outputs = engine.generate({request("The baker", 50), request("A small boat", 50)});
  for (const RequestOutput& output : outputs) {
    if (output.outputs.at(0).finish_reason != FinishReason::kError || output.outputs[0].error.empty())
      std::exit(3);
  }
  std::cerr << "dead: " << engine.dead_error() << "\n";
  if (engine.dead_error().empty() || dead.empty()) std::exit(4);
  if (engine.dead_error().find("is lost") == std::string::npos) std::exit(5);
  // Another engine of this process says so and does not hang.
  try {
    Engine second(config);
    std::exit(6);
  } catch (const Error& error) {
    std::cerr << "second: " << error.what() << "\n";
  }
  std::exit(0);
}

TEST_F(CudaDeviceTest, AnIllegalAccessEndsTheEngineCleanlyAndANewProcessWorks) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(lose_the_device(), testing::ExitedWithCode(0), "illegal");
  Engine engine(demo_config("cuda", "bfloat16"));
  EXPECT_EQ(engine.generate({request("The baker", 5)}).at(0).outputs.at(0).token_ids.size(), 5U);
}

TEST_F(CudaDeviceTest, ALaunchThatIsRefusedNamesKernelAndShape) {
  LaunchError error;
  LaunchContext ctx;
  ctx.error = &error;
  // More rows of blocks than a grid may have.
  const int64_t rows = 70'000;
  cuda_kernel_table(0)->apply_bitmask(ctx, {nullptr, DType::kFloat32, rows, 128},
                                      {nullptr, DType::kInt32, rows}, {nullptr, DType::kInt32, rows, 4});
  ASSERT_TRUE(error.failed);
  EXPECT_NE(std::string(error.text).find("apply_bitmask"), std::string::npos) << error.text;
  EXPECT_NE(std::string(error.text).find("70000"), std::string::npos) << error.text;
  EXPECT_THROW(check_launches(error), InternalError);
}

}  // namespace
}  // namespace quire
