#include "quire/sampling_params.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "quire/engine_config.h"
#include "quire/error.h"

namespace quire {
namespace {

// The error names the field.
void expect_refused(const std::string& field, const std::function<void(SamplingParams&)>& change) {
  SamplingParams params;
  change(params);
  try {
    params.validate(/*vocab_size=*/100);
    ADD_FAILURE() << field << " was accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(std::string(error.what()).rfind(field, 0), 0U) << error.what();
  }
}

TEST(SamplingParamsTest, DefaultsAreValid) { EXPECT_NO_THROW(SamplingParams().validate(100)); }

TEST(SamplingParamsTest, EveryFieldOutOfRangeIsNamed) {
  expect_refused("temperature", [](auto& p) { p.temperature = -0.1F; });
  expect_refused("temperature", [](auto& p) { p.temperature = NAN; });
  expect_refused("temperature", [](auto& p) { p.temperature = INFINITY; });
  expect_refused("top_k", [](auto& p) { p.top_k = -2; });
  expect_refused("top_p", [](auto& p) { p.top_p = 0.0F; });
  expect_refused("top_p", [](auto& p) { p.top_p = 1.1F; });
  expect_refused("top_p", [](auto& p) { p.top_p = NAN; });
  expect_refused("min_p", [](auto& p) { p.min_p = -0.1F; });
  expect_refused("min_p", [](auto& p) { p.min_p = 1.5F; });
  expect_refused("presence_penalty", [](auto& p) { p.presence_penalty = 2.1F; });
  expect_refused("frequency_penalty", [](auto& p) { p.frequency_penalty = -2.1F; });
  expect_refused("repetition_penalty", [](auto& p) { p.repetition_penalty = 0.0F; });
  expect_refused("logit_bias", [](auto& p) { p.logit_bias = {{100, 1.0F}}; });
  expect_refused("logit_bias", [](auto& p) { p.logit_bias = {{5, 101.0F}}; });
  expect_refused("logit_bias", [](auto& p) { p.logit_bias = {{5, NAN}}; });
  expect_refused("max_tokens", [](auto& p) { p.max_tokens = 0; });
  expect_refused("min_tokens", [](auto& p) { p.min_tokens = 17; });
  expect_refused("min_tokens", [](auto& p) { p.min_tokens = -1; });
  expect_refused("stop", [](auto& p) { p.stop = {"a", ""}; });
  expect_refused("stop needs detokenize", [](auto& p) {
    p.stop = {"a"};
    p.detokenize = false;
  });
  expect_refused("stop_token_ids", [](auto& p) { p.stop_token_ids = {-1}; });
  expect_refused("stop_token_ids", [](auto& p) { p.stop_token_ids = {100}; });
  expect_refused("n must", [](auto& p) { p.n = 0; });
  expect_refused("n must", [](auto& p) { p.n = 257; });
  expect_refused("logprobs", [](auto& p) { p.logprobs = -1; });
  expect_refused("logprobs", [](auto& p) { p.logprobs = 101; });
}

void expect_config_refused(const std::string& field, const std::function<void(EngineConfig&)>& change) {
  EngineConfig config;
  config.model = "directory";
  EXPECT_NO_THROW(config.validate());
  change(config);
  try {
    config.validate();
    ADD_FAILURE() << field << " was accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(std::string(error.what()).rfind(field, 0), 0U) << error.what();
  }
}

TEST(EngineConfigTest, EveryFieldOutOfRangeIsNamed) {
  expect_config_refused("model", [](auto& c) { c.model = ""; });
  expect_config_refused("dtype", [](auto& c) { c.dtype = "int3"; });
  expect_config_refused("max_model_len", [](auto& c) { c.max_model_len = -1; });
  expect_config_refused("device", [](auto& c) { c.device = "tpu"; });
  expect_config_refused("num_threads", [](auto& c) { c.num_threads = -1; });
  expect_config_refused("tensor_parallel_size", [](auto& c) { c.tensor_parallel_size = 0; });
  expect_config_refused("block_size", [](auto& c) { c.block_size = 17; });
  expect_config_refused("kv_cache_memory_bytes", [](auto& c) { c.kv_cache_memory_bytes = -1; });
  expect_config_refused("num_gpu_blocks_override", [](auto& c) { c.num_gpu_blocks_override = 1; });
  expect_config_refused("max_num_seqs", [](auto& c) { c.max_num_seqs = 0; });
  expect_config_refused("max_num_batched_tokens", [](auto& c) { c.max_num_batched_tokens = 0; });
  expect_config_refused("long_prefill_token_threshold", [](auto& c) { c.long_prefill_token_threshold = -1; });
  expect_config_refused("scheduling_policy", [](auto& c) { c.scheduling_policy = "lifo"; });
  expect_config_refused("max_queued_requests", [](auto& c) { c.max_queued_requests = -1; });
}

}  // namespace
}  // namespace quire
