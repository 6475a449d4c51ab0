#include "quire/sampling_params.h"

#include <gtest/gtest.h>

#include <csignal>

#include <cmath>
#include <functional>
#include <string_view>

#include "engine/field_samples.h"
#include "quire/engine_config.h"
#include "quire/error.h"
#include "util/error_of.h"

namespace quire {
namespace {

// The error names the field.
void expect_refused(const std::string& field, const std::function<void(SamplingParams&)>& change) {
  SamplingParams params;
  change(params);
  const std::string error = error_of([&] { params.validate(/*vocab_size=*/100); });
  EXPECT_TRUE(error.starts_with(field)) << field << ": " << error;
}

TEST(SamplingParamsTest, DefaultsAreValid) { EXPECT_NO_THROW(SamplingParams().validate(100)); }

TEST(SamplingParamsTest, EveryFieldOutOfItsRangeIsNamedWithWhatWouldDo) {
  size_t num_refused = 0;
  for_each_field(kSamplingParamsFields, [&](const auto& field) {
    for (const auto& value : outside(field.range, SamplingParams().*field.member)) {
      ++num_refused;
      SamplingParams params;
      params.*field.member = value;
      const std::string error = error_of([&] { params.validate(/*vocab_size=*/100); });
      EXPECT_TRUE(error.starts_with(field.name)) << field.name << ": " << error;
    }
  });
  EXPECT_GT(num_refused, 30U);
}

TEST(SamplingParamsTest, EveryFieldWithinItsRangeIsAccepted) {
  for_each_field(kSamplingParamsFields, [&](const auto& field) {
    SamplingParams params;
    params.*field.member = sample_of(field.range, params.*field.member).value;
    EXPECT_NO_THROW(params.validate(100)) << field.name;
  });
}

TEST(SamplingParamsTest, AComplaintSaysWhatWouldDo) {
  const auto complaint = [](auto change) {
    SamplingParams params;
    change(params);
    return error_of([&] { params.validate(100); });
  };
  EXPECT_EQ(complaint([](auto& p) { p.temperature = -1; }),
            "temperature must be at least 0 and finite, got -1");
  EXPECT_EQ(complaint([](auto& p) { p.top_k = -2; }),
            "top_k must be at least 1, or 0 or -1 for all tokens, got -2");
  EXPECT_EQ(complaint([](auto& p) { p.top_p = 0; }), "top_p must be above 0 and at most 1, got 0");
  EXPECT_EQ(complaint([](auto& p) { p.repetition_penalty = 0; }),
            "repetition_penalty must be above 0 and finite, got 0");
  EXPECT_EQ(complaint([](auto& p) { p.n = 300; }), "n must be between 1 and 256, got 300");
  EXPECT_EQ(complaint([](auto& p) { p.logit_bias = {{100, 1.0F}}; }),
            "logit_bias has token id 100; ids go from 0 to 99");
  EXPECT_EQ(complaint([](auto& p) { p.logit_bias = {{5, 101.0F}}; }),
            "logit_bias of token 5 must be between -100 and 100, got 101");
}

TEST(SamplingParamsTest, FieldsThatContradictOneAnotherAreNamed) {
  expect_refused("min_tokens must be between 0 and max_tokens (16)", [](auto& p) { p.min_tokens = 17; });
  expect_refused("stop needs detokenize", [](auto& p) {
    p.stop = {"a"};
    p.detokenize = false;
  });
}

void expect_config_refused(const std::string& field, const std::function<void(EngineConfig&)>& change) {
  EngineConfig config;
  config.model = "directory";
  EXPECT_NO_THROW(config.validate());
  change(config);
  const std::string error = error_of([&] { config.validate(); });
  EXPECT_TRUE(error.starts_with(field)) << field << ": " << error;
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
  for (const int signal : {-1, 65, SIGSEGV, SIGINT, SIGKILL})
    expect_config_refused("flight_recorder_signal", [&](auto& c) { c.flight_recorder_signal = signal; });
}

}  // namespace
}  // namespace quire
