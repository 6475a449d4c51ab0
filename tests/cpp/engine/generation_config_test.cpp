#include "engine/generation_config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "util/error_of.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

class GenerationConfigTest : public testing::Test {
 protected:
  GenerationConfigTest() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    directory_ = fs::path(testing::TempDir()) / (std::string("quire_") + info->name());
    fs::create_directories(directory_ / "other");
    config_.model = directory_.string();
  }
  ~GenerationConfigTest() override { fs::remove_all(directory_); }

  void write(const std::string& name, const std::string& text) { std::ofstream(directory_ / name) << text; }

  fs::path directory_;
  EngineConfig config_;
};

TEST_F(GenerationConfigTest, ReadsTheKeysThatVllmReads) {
  write("generation_config.json",
        R"({"temperature": 0.6, "top_p": 0.9, "top_k": 50, "min_p": 0.1, "do_sample": true,
      "repetition_penalty": 1.05, "max_new_tokens": 512, "presence_penalty": 1.5, "eos_token_id": [2, 0]})");
  SamplingParams expected;
  expected.temperature = 0.6F;
  expected.top_p = 0.9F;
  expected.top_k = 50;
  expected.min_p = 0.1F;
  expected.repetition_penalty = 1.05F;
  expected.max_tokens = 512;
  EXPECT_EQ(default_sampling_params(config_), expected);
  EXPECT_EQ(read_eos_token_ids(config_, 10), (std::vector<int32_t>{2, 0}));
  for (const char* none : {"vllm", "none"}) {
    config_.generation_config = none;
    EXPECT_EQ(default_sampling_params(config_), SamplingParams());
    EXPECT_EQ(read_eos_token_ids(config_, 10), (std::vector<int32_t>{2, 0}));  // what ends an answer stays
  }
}

TEST_F(GenerationConfigTest, WithoutAFileWhatIsGivenStays) {
  SamplingParams base;
  base.max_tokens = 1000;
  EXPECT_EQ(default_sampling_params(config_, base), base);
  write("generation_config.json", R"({"temperature": null, "top_p": 0.5})");
  base.top_p = 0.5F;
  EXPECT_EQ(default_sampling_params(config_, base), base);
}

TEST_F(GenerationConfigTest, WhatOverridesCountsBeforeAnyFile) {
  write("generation_config.json", R"({"temperature": 0.6, "top_p": 0.9})");
  config_.override_generation_config.text = R"({"temperature": 0.2, "max_new_tokens": 7})";
  SamplingParams expected;
  expected.temperature = 0.2F;
  expected.top_p = 0.9F;
  expected.max_tokens = 7;
  EXPECT_EQ(default_sampling_params(config_), expected);
  config_.generation_config = "vllm";
  expected.top_p = 1.0F;
  EXPECT_EQ(default_sampling_params(config_), expected);
}

TEST_F(GenerationConfigTest, AnotherFileIsNamedByItsDirectoryOrItself) {
  write("generation_config.json", R"({"temperature": 0.6, "eos_token_id": 2})");
  write("other/generation_config.json", R"({"temperature": 0.3, "eos_token_id": 5})");
  for (const char* path : {"other", "other/generation_config.json"}) {
    config_.generation_config = (directory_ / path).string();
    EXPECT_EQ(default_sampling_params(config_).temperature, 0.3F);
    EXPECT_EQ(read_eos_token_ids(config_, 10), std::vector<int32_t>{5});
  }
}

TEST_F(GenerationConfigTest, WhatIsWrongIsNamedWithItsFile) {
  const auto error = [&] { return error_of([&] { check_generation_config(config_); }); };
  config_.generation_config = "nowhere";
  EXPECT_NE(error().find("generation_config: no file 'nowhere'"), std::string::npos) << error();
  config_.generation_config = (directory_ / "other").string();
  write("other/generation_config.json", R"({"max_new_tokens": "many"})");
  EXPECT_NE(error().find("generation_config.json: max_new_tokens as max_tokens must be an integer"),
            std::string::npos)
      << error();
  write("other/generation_config.json", "[]");
  EXPECT_NE(error().find("must be a JSON object"), std::string::npos) << error();
  config_.generation_config = "auto";
  config_.override_generation_config.text = R"({"temprature": 1})";
  EXPECT_NE(error().find("override_generation_config: 'temprature' is not read"), std::string::npos);
  config_.override_generation_config.text = "{}";
  EXPECT_EQ(error(), "");
}

}  // namespace
}  // namespace quire
