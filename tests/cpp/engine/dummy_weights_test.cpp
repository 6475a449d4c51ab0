// An engine on a directory that holds nothing but config.json.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <set>

#include "quire/engine.h"
#include "quire/error.h"
#include "weights/loader_check.h"

namespace quire {
namespace {

class DummyWeightsTest : public testing::Test {
 protected:
  DummyWeightsTest() {
    std::ifstream config(QUIRE_DEMO_MODEL "/config.json");
    directory_.write("config.json", {std::istreambuf_iterator<char>(config), {}});
    config_.model = directory_.path();
    config_.load_format = "dummy";
    config_.skip_tokenizer_init = true;
    config_.max_model_len = 128;
    config_.num_threads = 2;
    config_.kv_cache_memory_bytes = 16 << 20;
  }
  std::vector<int32_t> generate() const {
    Engine engine(config_);
    EngineRequest request;
    request.prompt_token_ids = {1, 2, 3, 4, 5};
    request.sampling_params.temperature = 1;
    request.sampling_params.seed = 7;
    request.sampling_params.max_tokens = 40;
    request.sampling_params.ignore_eos = true;
    const auto outputs = engine.generate({request});
    return outputs.at(0).outputs.at(0).token_ids;
  }

  ModelDirectory directory_;
  EngineConfig config_;
};

TEST_F(DummyWeightsTest, AConfigAloneGeneratesTheSameTokensEachTime) {
  const auto tokens = generate();
  EXPECT_EQ(tokens.size(), 40U);
  // Logits of a moderate size leave all of the vocabulary likely; huge ones, zeros or NaN would not.
  EXPECT_GT(std::set<int32_t>(tokens.begin(), tokens.end()).size(), 30U);
  EXPECT_EQ(generate(), tokens);
}

TEST_F(DummyWeightsTest, TheConfigsTypeAndTheEnginesAreBothUsed) {
  EXPECT_EQ(Engine(config_).model().dtype, "bfloat16");
  config_.dtype = "float32";
  EXPECT_EQ(Engine(config_).model().dtype, "float32");
  EXPECT_EQ(generate().size(), 40U);
}

TEST_F(DummyWeightsTest, WithoutItTheWeightsAreMissed) {
  for (const char* load_format : {"auto", "safetensors"}) {
    config_.load_format = load_format;
    EXPECT_THROW(Engine{config_}, InvalidArgument);
  }
}

TEST(EngineConfigTest, DeviceNamesAndMemoryAreChecked) {
  EngineConfig config;
  config.model = "m";
  for (const char* device : {"auto", "cpu", "cuda", "cuda:0", "cuda:12"}) {
    config.device = device;
    config.validate();
  }
  for (const char* device : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1 ", "cuda:1000", "cuda0"}) {
    config.device = device;
    EXPECT_THROW(config.validate(), InvalidArgument) << device;
  }
  config.device = "auto";
  for (const double utilization : {0.0, -0.1, 1.01, 0.0 / 0.0}) {
    config.gpu_memory_utilization = utilization;
    EXPECT_THROW(config.validate(), InvalidArgument) << utilization;
  }
  config.gpu_memory_utilization = 1.0;
  config.validate();
  config.gpu_memory_bytes = -1;
  EXPECT_THROW(config.validate(), InvalidArgument);
  config.gpu_memory_bytes = 0;
  config.load_format = "gguf";
  EXPECT_THROW(config.validate(), InvalidArgument);
}

}  // namespace
}  // namespace quire
