// Plans against engines: what was said is what is taken.
#include "quire/memory_plan.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "quire/engine.h"
#include "quire/kernels/cuda_device.h"
#include "util/error_of.h"
#include "weights/model_directory.h"

namespace quire {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kGiB = int64_t{1} << 30;

EngineConfig host_config(const std::string& model = QUIRE_DEMO_MODEL) {
  EngineConfig config;
  config.model = model;
  config.device = "cpu";
  config.max_model_len = 256;
  config.kv_cache_memory_bytes = 32 * kMiB;
  config.num_threads = 1;
  config.skip_tokenizer_init = true;
  return config;
}

PlannedDevice host_of(int64_t bytes = 64 * kGiB) { return {"cpu", bytes, 0, 0, 0}; }
PlannedDevice device_named(const std::string& name, int64_t memory_bytes = 0) {
  EngineConfig config;
  config.device = "cuda";
  return find_planned_device(config, name, memory_bytes);
}

// A model that is a config.json.
void write_shape(const ModelDirectory& directory, const std::string& architecture, const std::string& more) {
  directory.write("config.json", R"({"architectures": [")" + architecture + R"("], "vocab_size": 1003,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "torch_dtype": "bfloat16", )" +
                                     more + "}");
}

void expect_as_planned(const EngineConfig& config) {
  const MemoryPlan plan = plan_memory(config, host_of());
  ASSERT_TRUE(plan.fits()) << plan.problem;
  const Engine engine(config);
  EXPECT_EQ(plan.memory, engine.model().memory)
      << memory_table(plan.memory) << memory_table(engine.model().memory);
  EXPECT_EQ(plan.dtype, engine.model().dtype);
  EXPECT_EQ(plan.max_model_len, engine.model().max_model_len);
  EXPECT_EQ(plan.num_blocks - 1, engine.stats().num_total_blocks);
}

TEST(MemoryPlanOfHostTest, AnEngineTakesWhatWasPlanned) {
  EngineConfig config = host_config();
  expect_as_planned(config);
  config.dtype = "float32";
  config.max_model_len = 2048;
  expect_as_planned(config);
  config.tensor_parallel_size = 2;
  expect_as_planned(config);
  config = host_config();
  config.max_num_seqs = 200;
  config.max_num_batched_tokens = 8192;
  config.num_gpu_blocks_override = 300;
  expect_as_planned(config);
}

TEST(MemoryPlanOfHostTest, OtherArchitecturesToo) {
  const ModelDirectory directory;
  write_shape(directory, "Gemma2ForCausalLM",
              R"("hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "sliding_window": 64,
    "hidden_activation": "gelu_pytorch_tanh", "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
    "query_pre_attn_scalar": 32, "tie_word_embeddings": true)");
  EngineConfig config = host_config(directory.path());
  config.load_format = "dummy";
  config.max_model_len = 0;
  config.kv_cache_memory_bytes = 64 * kMiB;
  expect_as_planned(config);
  write_shape(directory, "Qwen2ForCausalLM",
              R"("hidden_size": 192, "intermediate_size": 384, "num_hidden_layers": 3,
    "num_attention_heads": 6, "num_key_value_heads": 2, "hidden_act": "silu", "tie_word_embeddings": false)");
  expect_as_planned(config);
}

TEST(MemoryPlanOfHostTest, WhatDoesNotFitSaysWhatWould) {
  EngineConfig config = host_config();
  config.max_model_len = 2048;
  config.kv_cache_memory_bytes = 4 * kMiB;
  config.max_num_seqs = 8;
  const MemoryPlan plan = plan_memory(config, host_of());
  EXPECT_NE(plan.problem.find("one sequence of max_model_len 2048 needs"), std::string::npos) << plan.problem;
  EXPECT_FALSE(plan.fits());
  std::vector<std::string> fields;
  for (const PlanSuggestion& suggestion : plan.suggestions) {
    fields.push_back(suggestion.field);
    EngineConfig changed = config;
    if (suggestion.field == "max_model_len") {
      changed.max_model_len = static_cast<int32_t>(suggestion.value);
      // The largest: a block more does not fit.
      EngineConfig beyond = changed;
      beyond.max_model_len += 16;
      EXPECT_FALSE(plan_memory(beyond, host_of()).fits());
    }
    if (suggestion.field == "kv_cache_memory_bytes") changed.kv_cache_memory_bytes = suggestion.value;
    EXPECT_EQ(error_of<std::exception>([&] { const Engine engine(changed); }), "") << suggestion.field;
  }
  EXPECT_EQ(fields, (std::vector<std::string>{"max_model_len", "kv_cache_memory_bytes"}));
  // The engine's own refusal: the same words, and the same numbers.
  testing::internal::CaptureStderr();
  const std::string refusal = error_of([&] { const Engine engine(config); });
  const std::string log = testing::internal::GetCapturedStderr();
  RankMemory besides = plan.memory;
  besides.kv_cache = 0;
  std::istringstream table(memory_table(besides));
  for (std::string line; std::getline(table, line);)
    EXPECT_NE(log.find(line + "\n"), std::string::npos) << log;
  EXPECT_TRUE(refusal.starts_with(plan.problem + "; besides the KV cache: weights ")) << refusal;
  EXPECT_NE(plan_text(plan).find("would fit with one of: max_model_len"), std::string::npos)
      << plan_text(plan);
}

TEST(MemoryPlanOfHostTest, AHostThatIsTooSmall) {
  const MemoryPlan plan = plan_memory(host_config(), host_of(50 * kMiB));
  EXPECT_NE(plan.problem.find("52428800 are free"), std::string::npos) << plan.problem;
  EXPECT_EQ(plan.suggestions.back().field, "device_memory");
  EXPECT_TRUE(plan_memory(host_config(), host_of(plan.suggestions.back().value)).fits());
}

// The 8 B shape of Llama 3, on devices that are not there.
void write_llama_8b(const ModelDirectory& directory, const std::string& more = "") {
  directory.write("config.json",
                  R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 128256, "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": false,
    "torch_dtype": "bfloat16")" +
                      more + "}");
}

TEST(MemoryPlanOfDeviceTest, NeedsNoDevice) {
  if (!built_with_cuda()) GTEST_SKIP() << "this build has no CUDA code";
  const ModelDirectory directory;
  write_llama_8b(directory);
  EngineConfig config;
  config.model = directory.path();
  config.device = "cuda";
  config.load_format = "dummy";
  config.skip_tokenizer_init = true;
  const MemoryPlan plan = plan_memory(config, device_named("h200"));
  ASSERT_TRUE(plan.fits()) << plan.problem;
  // 8.03 billion parameters, two bytes each, and the angles of 8,192 positions.
  EXPECT_NEAR(static_cast<double>(plan.memory.weights), 8'030'261'248.0 * 2 + 8192.0 * 128 * 4, 2e6);
  EXPECT_EQ(plan.kv_bytes_per_token, 32 * 2 * 8 * 128 * 2);
  EXPECT_EQ(plan.max_num_seqs, 1024);
  EXPECT_EQ(plan.max_num_batched_tokens, 8192);
  EXPECT_EQ(plan_memory(config, device_named("L40S")).max_num_seqs, 256);
  EngineConfig few_blocks = config;
  few_blocks.num_gpu_blocks_override = 600;
  EXPECT_EQ(plan_memory(few_blocks, device_named("h200")).max_num_seqs, 599);
  // Half a budget's worth of memory is half the budget.
  config.gpu_memory_utilization = 0.45;
  const MemoryPlan half = plan_memory(config, device_named("h200"));
  EXPECT_NEAR(static_cast<double>(half.peak_bytes()), 0.45 * static_cast<double>(half.device.memory_bytes),
              4e6);
  EXPECT_EQ(half.memory.weights, plan.memory.weights);
  // Another device, other sizes of scratch.
  EXPECT_NE(plan_memory(config, device_named("A100")).memory.workspace, 0);
}

TEST(MemoryPlanOfDeviceTest, WhatDoesNotFitSaysWhatWould) {
  if (!built_with_cuda()) GTEST_SKIP() << "this build has no CUDA code";
  const ModelDirectory directory;
  write_llama_8b(directory);
  EngineConfig config;
  config.model = directory.path();
  config.device = "cuda";
  config.load_format = "dummy";
  const PlannedDevice small = device_named("H100", 14 * kGiB);
  const MemoryPlan plan = plan_memory(config, small);
  EXPECT_NE(plan.problem.find("and the budget is 12.60 GiB"), std::string::npos) << plan.problem;
  ASSERT_EQ(plan.suggestions.size(), 2U) << plan_text(plan);
  EXPECT_EQ(plan.suggestions[0].field, "tensor_parallel_size");
  EXPECT_EQ(plan.suggestions[0].value, 2);
  EXPECT_EQ(plan.suggestions[1].field, "device_memory");
  config.tensor_parallel_size = 2;
  const MemoryPlan two = plan_memory(config, small);
  EXPECT_TRUE(two.fits());
  EXPECT_GT(two.memory.exchange, 0);
  EXPECT_LT(two.memory.weights, plan.memory.weights * 52 / 100);
}

TEST(PlannedDeviceTest, IsFoundByName) {
  EngineConfig config;
  config.device = "cpu";
  EXPECT_GT(find_planned_device(config).memory_bytes, kMiB);
  EXPECT_EQ(find_planned_device(config, "", kGiB).memory_bytes, kGiB);
  EXPECT_NE(error_of([&] { find_planned_device(config, "H100"); }).find("device is 'cpu'"),
            std::string::npos);
  EXPECT_EQ(device_named("l40s").compute_capability, 89);
  EXPECT_EQ(device_named("h100", 5 * kGiB).memory_bytes, 5 * kGiB);
  EXPECT_NE(error_of([] { device_named("H1000"); }).find("known: A100, H100"), std::string::npos);
  EXPECT_NE(error_of([] { device_named("H100", -1); }).find("device_memory -1"), std::string::npos);
}

TEST(PlannedDeviceTest, ADeviceThatNoCodeIsForIsRefused) {
  PlannedDevice old{"K80", 12 * kGiB, 37, 13, 48 << 10};
  EXPECT_NE(
      error_of([&] { plan_memory(host_config(), old); }).find("compute capability 3.7 cannot be planned for"),
      std::string::npos);
}

}  // namespace
}  // namespace quire
