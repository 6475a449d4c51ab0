// What the tests of the engine on a CUDA device share. They are skipped where there is none.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "quire/engine.h"
#include "quire/kernels/backend_registry.h"

namespace quire {

inline EngineConfig demo_config(const std::string& device, const std::string& dtype = "float32") {
  EngineConfig config;
  config.model = QUIRE_DEMO_MODEL;
  config.device = device;
  config.dtype = dtype;
  config.max_model_len = 256;
  config.max_num_batched_tokens = 256;
  config.max_num_seqs = 24;
  config.num_threads = 2;
  config.gpu_memory_bytes = int64_t{2} << 30;
  config.kv_cache_memory_bytes = 64 << 20;
  return config;
}

inline EngineRequest request(const std::string& prompt, int32_t max_tokens, float temperature = 0) {
  EngineRequest result;
  result.prompt = prompt;
  result.sampling_params.temperature = temperature;
  result.sampling_params.seed = 11;
  result.sampling_params.max_tokens = max_tokens;
  result.sampling_params.ignore_eos = true;
  return result;
}

// Greedy, with prompts for steps that are longer than any graph. Their engine has room for 1,500 tokens.
inline std::vector<EngineRequest> long_requests() {
  std::vector<EngineRequest> requests;
  for (const int32_t length : {700, 90, 33, 1350}) {
    requests.push_back(request("", 20));
    for (int32_t i = 0; i < length; ++i)
      requests.back().prompt_token_ids.push_back((i * i + 7 * length) % 900 + 10);
  }
  return requests;
}

class CudaEngineTest : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_kernel_table(0) == nullptr) GTEST_SKIP() << "no CUDA device";
  }
};

}  // namespace quire
