// The engine on a CUDA device against the one on the CPU, and against itself with and without graphs and
// steps in flight. Skipped where there is no device.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <condition_variable>
#include <functional>
#include <future>
#include <mutex>
#include <random>
#include <thread>

#include "engine/cuda_fixture.h"
#include "quire/engine.h"
#include "quire/error.h"
#include "quire/kernels/backend_registry.h"
#include "weights/model_directory.h"

namespace quire {
namespace {

const std::vector<std::string> kPrompts = {"Once upon a time",
                                           "The baker",
                                           "A small boat drifted past the lighthouse while",
                                           "In the morning",
                                           "Tell me a short story about a lighthouse.",
                                           "She opened the door and",
                                           "It was raining"};

std::vector<EngineRequest> varied_requests() {
  std::vector<EngineRequest> requests;
  for (size_t i = 0; i < 3 * kPrompts.size(); ++i)
    requests.push_back(request(kPrompts[i % kPrompts.size()], 10 + static_cast<int32_t>(i) * 3));
  return requests;
}

// So few rows attend by the same kernel in whatever company; beyond, near ties fall as that wants
// (docs/cuda.md).
constexpr int32_t kRowsOfOneKernel = 4;

using Tokens = std::vector<std::vector<int32_t>>;
Tokens generate(const EngineConfig& config, std::vector<EngineRequest> requests) {
  Engine engine(config);
  Tokens tokens;
  for (const RequestOutput& output : engine.generate(std::move(requests))) {
    EXPECT_EQ(output.outputs.at(0).error, "");
    tokens.push_back(output.outputs.at(0).token_ids);
  }
  return tokens;
}

TEST_F(CudaEngineTest, GreedyTokensEqualTheCpusInFloat32) {
  EXPECT_EQ(generate(demo_config("cuda"), varied_requests()),
            generate(demo_config("cpu"), varied_requests()));
}

TEST_F(CudaEngineTest, GraphsAndStepsInFlightChangeNothing) {
  for (const char* dtype : {"float32", "bfloat16", "float16"}) {
    EngineConfig config = demo_config("cuda", dtype);
    if (dtype != std::string("float32")) config.max_num_seqs = kRowsOfOneKernel;
    config.enforce_eager = true;
    config.async_scheduling = false;
    const Tokens expected = generate(config, varied_requests());
    for (const bool eager : {false, true}) {
      for (const bool async : {false, true}) {
        config.enforce_eager = eager;
        config.async_scheduling = async;
        EXPECT_EQ(generate(config, varied_requests()), expected)
            << dtype << " eager " << eager << " async " << async;
      }
    }
  }
}

// What has left the device's memory comes back: blocks for three sequences only, and then chunks of 16
// tokens.
TEST_F(CudaEngineTest, PreemptedRequestsGiveTheSameTokens) {
  const Tokens expected = generate(demo_config("cuda"), varied_requests());
  EngineConfig config = demo_config("cuda");
  config.kv_cache_memory_bytes = 0;
  config.num_gpu_blocks_override = 1 + 2 * 256 / config.block_size;
  EXPECT_EQ(generate(config, varied_requests()), expected);
  config.max_num_batched_tokens = 16;
  config.max_num_seqs = 7;
  EXPECT_EQ(generate(config, varied_requests()), expected);
}

// In steps longer than any graph the last layer leaves out rows: all of a chunk, or all but a prompt's last.
TEST_F(CudaEngineTest, ChunksOfPromptsGiveTheCpusTokens) {
  const auto tokens = [&](const char* device, int32_t max_num_batched_tokens) {
    EngineConfig config = demo_config(device);
    config.max_model_len = 1500;
    config.max_num_batched_tokens = max_num_batched_tokens;
    return generate(config, long_requests());
  };
  const Tokens expected = tokens("cpu", 64);
  for (const int32_t max_num_batched_tokens : {520, 640, 2200})
    EXPECT_EQ(tokens("cuda", max_num_batched_tokens), expected) << max_num_batched_tokens;
}

TEST_F(CudaEngineTest, SamplingParametersMeanWhatTheyMeanOnTheCpu) {
  // Choices that leave one token: the draw does not matter.
  std::vector<EngineRequest> requests;
  for (int i = 0; i < 7; ++i) requests.push_back(request(kPrompts[static_cast<size_t>(i)], 30));
  requests[0].sampling_params.repetition_penalty = 1.3F;
  requests[1].sampling_params.presence_penalty = 0.7F;
  requests[1].sampling_params.frequency_penalty = 0.4F;
  requests[2].sampling_params.logit_bias = {{100, 5.0F}, {200, -100.0F}, {300, 3.0F}};
  requests[3].sampling_params.temperature = 0.8F;
  requests[3].sampling_params.top_k = 1;
  requests[4].sampling_params.temperature = 0.8F;
  requests[4].sampling_params.top_p = 1e-6F;
  requests[5].sampling_params.temperature = 0.8F;
  requests[5].sampling_params.min_p = 1;
  requests[6].sampling_params.ignore_eos = false;
  requests[6].sampling_params.min_tokens = 25;
  EXPECT_EQ(generate(demo_config("cuda"), requests), generate(demo_config("cpu"), requests));
}

TEST_F(CudaEngineTest, ASeedDrawsTheCpusTokensInFloat32) {
  std::vector<EngineRequest> requests;
  for (int i = 0; i < 14; ++i) {
    requests.push_back(request(kPrompts[static_cast<size_t>(i % 7)], 30, i % 3 == 0 ? 1.0F : 1.4F));
    SamplingParams& params = requests.back().sampling_params;
    params.seed = 100 + i;
    if (i % 2 == 0) params.top_p = 0.9F;
    if (i % 5 == 0) params.top_k = 30;
    if (i % 7 == 3) params.min_p = 0.05F;
  }
  EXPECT_EQ(generate(demo_config("cuda"), requests), generate(demo_config("cpu"), requests));
}

TEST_F(CudaEngineTest, ASeedGivesTheSameTokensInAnyCompany) {
  std::vector<EngineRequest> requests;
  for (int i = 0; i < 10; ++i) {
    requests.push_back(request("Once upon a time", 30, 1.0F));
    requests.back().sampling_params.seed = i / 2;
    if (i % 4 == 0) requests.back().sampling_params.top_p = 0.9F;
    if (i % 4 == 1) requests.back().sampling_params.top_p = 0.9F;
  }
  const Tokens together = generate(demo_config("cuda"), requests);
  for (size_t i = 0; i < requests.size(); i += 2) EXPECT_EQ(together[i], together[i + 1]) << i;
  EXPECT_NE(together[2], together[6]);
  Engine engine(demo_config("cuda"));
  EXPECT_EQ(engine.generate({requests[4]}).at(0).outputs.at(0).token_ids, together[4]);
}

TEST_F(CudaEngineTest, LogprobsEqualTheCpus) {
  std::vector<EngineRequest> requests;
  for (int i = 0; i < 5; ++i) {
    requests.push_back(request(kPrompts[static_cast<size_t>(i)], 8));
    if (i != 2) requests.back().sampling_params.logprobs = i * 3;
    if (i == 1) requests.back().sampling_params.logit_bias = {{50, 100.0F}};
  }
  const auto run = [&](const char* device) {
    Engine engine(demo_config(device));
    return engine.generate(requests);
  };
  const auto expected = run("cpu"), actual = run("cuda");
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto& want = expected[i].outputs.at(0).logprobs;
    const auto& got = actual[i].outputs.at(0).logprobs;
    ASSERT_EQ(got.size(), want.size()) << i;
    ASSERT_EQ(want.empty(), i == 2);
    for (size_t t = 0; t < want.size(); ++t) {
      ASSERT_EQ(got[t].size(), want[t].size());
      for (size_t k = 0; k < want[t].size(); ++k) {
        EXPECT_EQ(got[t][k].token_id, want[t][k].token_id) << i << " " << t << " " << k;
        EXPECT_EQ(got[t][k].rank, want[t][k].rank);
        EXPECT_NEAR(got[t][k].logprob, want[t][k].logprob, 1e-3);
      }
    }
  }
}

// A random model whose last two layers of six have a window of 40 tokens, and the others none.
void write_windowed_model(const ModelDirectory& directory) {
  constexpr int64_t kHidden = 256, kIntermediate = 512, kHeadDim = 64, kVocab = 512;
  directory.write("config.json", R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 6, "num_attention_heads": 4,
"num_key_value_heads": 2, "head_dim": 64, "vocab_size": 512, "max_position_embeddings": 512,
"rms_norm_eps": 1e-06, "hidden_act": "silu", "rope_theta": 10000.0, "tie_word_embeddings": false,
"use_sliding_window": true, "sliding_window": 40, "max_window_layers": 4, "dtype": "float32",
"eos_token_id": 511})");
  std::mt19937 random(9);
  std::vector<NamedTensor> tensors;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    const bool is_norm = shape.size() == 1;
    std::normal_distribution<float> normal(
        is_norm ? 1.0F : 0.0F, is_norm ? 0.1F : 1.5F / std::sqrt(static_cast<float>(shape.back())));
    std::vector<float> values(static_cast<size_t>(is_norm ? shape[0] : shape[0] * shape[1]));
    for (float& value : values) value = normal(random);
    tensors.push_back({name + ".weight",
                       "F32",
                       std::move(shape),
                       {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)}});
  };
  add("model.embed_tokens", {kVocab, kHidden});
  for (int layer = 0; layer < 6; ++layer) {
    const std::string name = "model.layers." + std::to_string(layer);
    for (const char* norm : {".input_layernorm", ".post_attention_layernorm"}) add(name + norm, {kHidden});
    for (const char* norm : {".self_attn.q_norm", ".self_attn.k_norm"}) add(name + norm, {kHeadDim});
    add(name + ".self_attn.q_proj", {4 * kHeadDim, kHidden});
    add(name + ".self_attn.k_proj", {2 * kHeadDim, kHidden});
    add(name + ".self_attn.v_proj", {2 * kHeadDim, kHidden});
    add(name + ".self_attn.o_proj", {kHidden, 4 * kHeadDim});
    add(name + ".mlp.gate_proj", {kIntermediate, kHidden});
    add(name + ".mlp.up_proj", {kIntermediate, kHidden});
    add(name + ".mlp.down_proj", {kHidden, kIntermediate});
  }
  add("model.norm", {kHidden});
  add("lm_head", {kVocab, kHidden});
  write_safetensors(directory, tensors);
}

// Layers with a window and layers without: two groups of blocks, in much memory and in little.
TEST_F(CudaEngineTest, KVCacheGroupsOfTwoKindsGiveTheCpusTokens) {
  const ModelDirectory directory;
  write_windowed_model(directory);
  EngineConfig config = demo_config("cpu");
  config.model = directory.path();
  config.skip_tokenizer_init = true;
  config.max_num_batched_tokens = 96;  // chunks, beside decodes
  std::vector<EngineRequest> requests;
  for (int32_t i = 0; i < 20; ++i) {
    requests.push_back(request("", 12 + i));
    for (int32_t k = 0; k < 5 + 11 * i; ++k)
      requests.back().prompt_token_ids.push_back((k * 37 + i * i * 101) % 500);
  }
  const Tokens expected = generate(config, requests);
  config.device = "cuda";
  EXPECT_EQ(generate(config, requests), expected);
  config.kv_cache_memory_bytes = 4 << 20;  // a few sequences' worth
  Engine small(config);
  const auto outputs = small.generate(requests);
  for (size_t i = 0; i < outputs.size(); ++i) EXPECT_EQ(outputs[i].outputs.at(0).token_ids, expected[i]) << i;
  EXPECT_GT(small.stats().num_preemptions, 0U);
}

// Random arrivals and aborts, for a few seconds; QUIRE_SOAK_SECONDS makes it a soak. `make_request` draws the
// next.
void soak(const EngineConfig& config, uint32_t seed,
          const std::function<EngineRequest(std::mt19937&)>& make_request) {
  const char* wanted = std::getenv("QUIRE_SOAK_SECONDS");
  const double seconds = wanted != nullptr ? std::atof(wanted) : 5;
  Engine engine(config);
  std::mt19937 random(seed);
  std::mutex mutex;
  std::condition_variable changed;
  size_t unfinished = 0, finished = 0, failed = 0;
  std::vector<std::string> ids;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  size_t submitted = 0;
  while (std::chrono::steady_clock::now() < end) {
    const EngineRequest next = make_request(random);
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return unfinished < 150; });
      ++unfinished;
    }
    ids.push_back(engine.add_request(next, [&](RequestOutput&& output) {
      if (!output.finished) return;
      const std::lock_guard lock(mutex);
      --unfinished;
      ++finished;
      failed += output.outputs.at(0).finish_reason == FinishReason::kError;
      changed.notify_all();
    }));
    ++submitted;
    if (random() % 5 == 0)
      engine.abort_request(ids[ids.size() - 1 - random() % std::min<size_t>(ids.size(), 100)]);
    if (random() % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
  }
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return unfinished == 0; });
  lock.unlock();
  EXPECT_EQ(finished, submitted);
  EXPECT_EQ(failed, 0U);
  EXPECT_TRUE(engine.reset_prefix_cache());  // false while a request holds a block
  EXPECT_EQ(engine.dead_error(), "");
  testing::Test::RecordProperty("submitted", static_cast<int>(submitted));
  std::printf("%zu requests in %.0f s\n", submitted, seconds);
}

TEST_F(CudaEngineTest, AfterArrivalsAndAbortsEveryBlockIsBack) {
  EngineConfig config = demo_config("cuda", "bfloat16");
  config.max_num_seqs = 64;
  config.kv_cache_memory_bytes = 0;
  config.num_gpu_blocks_override = 300;  // too few for all: some are preempted
  soak(config, 5, [](std::mt19937& random) {
    EngineRequest next =
        request(kPrompts[random() % kPrompts.size()], 1 + static_cast<int32_t>(random() % 200),
                static_cast<float>(random() % 3) * 0.6F);
    next.sampling_params.top_k = static_cast<int32_t>(random() % 3) * 20;
    if (random() % 8 == 0) next.sampling_params.logprobs = static_cast<int32_t>(random() % 5);
    if (random() % 8 == 0) next.sampling_params.repetition_penalty = 1.1F;
    if (random() % 8 == 0) next.sampling_params.min_tokens = next.sampling_params.max_tokens / 2;
    next.sampling_params.ignore_eos = random() % 2 == 0;
    return next;
  });
}

// What the test before leaves out: no graphs, float16, prompts that are computed in several steps
// and have their beginnings in common.
TEST_F(CudaEngineTest, AfterLongPromptsWithSharedBeginningsEveryBlockIsBack) {
  EngineConfig config = demo_config("cuda", "float16");
  config.enforce_eager = true;
  config.enable_prefix_caching = true;
  config.max_num_seqs = 32;
  config.max_num_batched_tokens = 64;
  config.long_prefill_token_threshold = 48;
  config.kv_cache_memory_bytes = 0;
  config.num_gpu_blocks_override = 150;  // ten of the longest
  soak(config, 6, [](std::mt19937& random) {
    EngineRequest next =
        request("", 1 + static_cast<int32_t>(random() % 50), static_cast<float>(random() % 2));
    const uint32_t beginning = random() % 4, num_shared = random() % 150, num_own = 1 + random() % 50;
    for (uint32_t i = 0; i < num_shared; ++i)
      next.prompt_token_ids.push_back(static_cast<int32_t>(10 + (beginning * 997 + i * 37) % 4000));
    for (uint32_t i = 0; i < num_own; ++i)
      next.prompt_token_ids.push_back(static_cast<int32_t>(10 + random() % 4000));
    next.sampling_params.top_p = random() % 2 == 0 ? 1 : 0.9F;
    if (random() % 8 == 0) next.sampling_params.presence_penalty = 0.5F;
    if (random() % 8 == 0) next.sampling_params.logit_bias = {{100, 2.0F}};
    return next;
  });
}

TEST_F(CudaEngineTest, ABudgetThatIsTooSmallIsRefusedByName) {
  EngineConfig config = demo_config("cuda");
  config.gpu_memory_bytes = 1 << 20;
  try {
    Engine engine(config);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("gpu_memory"), std::string::npos) << error.what();
  }
}

TEST_F(CudaEngineTest, NeighboursDoNotDisturb) {
  EngineConfig config = demo_config("cuda", "bfloat16");
  config.max_num_seqs = kRowsOfOneKernel;
  Engine first(config);
  const auto expected = first.generate(varied_requests());
  Engine second(config);
  std::vector<std::vector<RequestOutput>> results(2);
  std::thread other([&] { results[1] = second.generate(varied_requests()); });
  results[0] = first.generate(varied_requests());
  other.join();
  for (const auto& outputs : results) {
    for (size_t i = 0; i < outputs.size(); ++i)
      EXPECT_EQ(outputs[i].outputs.at(0).token_ids, expected[i].outputs.at(0).token_ids) << i;
  }
}

// Each measures and captures while the other allocates and copies.
TEST_F(CudaEngineTest, EnginesThatStartTogetherAllStart) {
  const Tokens expected = generate(demo_config("cuda"), varied_requests());
  std::vector<std::future<Tokens>> results;
  for (int i = 0; i < 3; ++i) {
    results.push_back(
        std::async(std::launch::async, [] { return generate(demo_config("cuda"), varied_requests()); }));
  }
  for (auto& tokens : results) EXPECT_EQ(tokens.get(), expected);
}

// What is known of a device, and what its kernels are allowed, is not the other one's.
TEST_F(CudaEngineTest, EnginesOnTwoDevicesWorkSideBySide) {
  if (cuda_kernel_table(1) == nullptr) GTEST_SKIP() << "there is one device";
  const Tokens expected = generate(demo_config("cpu"), varied_requests());
  const auto on = [](const char* device) {
    return std::async(std::launch::async,
                      [device] { return generate(demo_config(device), varied_requests()); });
  };
  auto second = on("cuda:1"), first = on("cuda:0");
  EXPECT_EQ(second.get(), expected);
  EXPECT_EQ(first.get(), expected);
}

TEST(NoCudaEngineTest, WithoutADeviceTheErrorSaysWhatIsThere) {
  if (cuda_kernel_table(0) != nullptr) GTEST_SKIP() << "there is a CUDA device";
  try {
    Engine engine(demo_config("cuda"));
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("device 'cuda'"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("'cpu'"), std::string::npos) << error.what();
  }
  EXPECT_EQ(generate(demo_config("auto"), {request("The baker", 5)}),
            generate(demo_config("cpu"), {request("The baker", 5)}));
}

}  // namespace
}  // namespace quire
