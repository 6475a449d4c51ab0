#include "model_config.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "quire/error.h"
#include "tensors.h"
#include "triton_test.h"

namespace quire::triton::host {
namespace {

using Json = nlohmann::json;

template <typename Function>
std::string complaint_of(Function&& function) {
  try {
    function();
    return "";
  } catch (const InvalidArgument& complaint) {
    return complaint.what();
  }
}

std::string completion_error(const std::string& config) {
  return complaint_of([&] { complete_config(config); });
}

std::string settings_error(const std::map<std::string, std::string>& parameters) {
  return complaint_of([&] { read_settings(demo_config(parameters), "/r/m/1"); });
}

TEST(ModelConfigTest, AnEmptyConfigurationIsCompletedWithEveryTensor) {
  const auto config = Json::parse(complete_config(R"({"name": "m", "backend": "quire"})"));
  const auto always =
      std::ranges::count_if(input_specs(), [](const TensorSpec& spec) { return !spec.if_batched; });
  ASSERT_EQ(config["input"].size(), static_cast<size_t>(always));
  ASSERT_EQ(config["output"].size(), output_specs().size());
  for (const auto& input : config["input"]) EXPECT_EQ(input["optional"], true);
  for (const auto& output : config["output"]) EXPECT_FALSE(output.contains("optional"));
  EXPECT_EQ(config["model_transaction_policy"]["decoupled"], true);
  EXPECT_EQ(config["name"], "m");
}

TEST(ModelConfigTest, CompletingTwiceChangesNothing) {
  const std::string once = complete_config(R"({"name": "m"})");
  EXPECT_EQ(complete_config(once), once);
}

TEST(ModelConfigTest, ABatchDimensionBringsTheInputsOfTensorRTLLM) {
  const auto config = Json::parse(complete_config(R"({"max_batch_size": 1})"));
  EXPECT_EQ(config["input"].size(), input_specs().size());
  EXPECT_TRUE(read_settings(R"({"max_batch_size": 1})", kDemoModel).batched);
  EXPECT_FALSE(read_settings("{}", kDemoModel).batched);
  const std::string by_hand = R"({"input": [{"name": "top_k", "data_type": "TYPE_INT32", "dims": [1]}]})";
  EXPECT_EQ(completion_error(by_hand), "") << "an author may list them without one";
}

TEST(ModelConfigTest, WhatTheAuthorWroteStays) {
  const auto config = Json::parse(complete_config(
      R"({"input": [{"name": "stream", "data_type": "TYPE_BOOL", "dims": [1]}],
          "model_transaction_policy": {"decoupled": false}})"));
  EXPECT_EQ(config["input"][0]["name"], "stream");
  EXPECT_FALSE(config["input"][0].contains("optional"));
  EXPECT_GT(config["input"].size(), 10U);
  EXPECT_EQ(config["model_transaction_policy"]["decoupled"], false);
}

TEST(ModelConfigTest, WhatTheBackendCannotDoIsRefused) {
  for (
      const auto& [config, needle] : std::vector<std::pair<std::string, std::string>>{
          {R"({"max_batch_size": 8})", "max_batch_size is 8"},
          {R"({"sequence_batching": {}})", "sequence_batching"},
          {R"({"response_cache": {"enable": true}})", "response_cache is enabled; leave it out"},
          {R"({"input": [{"name": "PROMPT", "data_type": "TYPE_STRING"}]})", "PROMPT"},
          {R"({"output": [{"name": "output_ids", "data_type": "TYPE_INT64"}]})", "TYPE_INT32"},
          {R"({"input": [{"name": "stream", "data_type": "TYPE_BOOL", "dims": ["2"]}]})", "dimension of 2"},
          {R"({"input": [{"name": "stream", "data_type": "TYPE_BOOL"}, {"name": "stream", "data_type": "TYPE_BOOL"}]})",
           "input 'stream' is twice"}}) {
    EXPECT_NE(completion_error(config).find(needle), std::string::npos) << completion_error(config);
  }
}

// The server may crash when a sample fails, so those that must are refused.
TEST(ModelConfigTest, AWarmupThatMustFailIsRefused) {
  const auto complaint = [](const std::string& sample) {
    return completion_error(R"({"model_warmup": [{"name": "w", )" + sample + "}]}");
  };
  const std::string ids = R"("inputs": {"input_ids": {"data_type": "TYPE_INT32", "zero_data": true}})";
  EXPECT_EQ(complaint(R"("batch_size": 1, )" + ids), "");
  EXPECT_NE(complaint(ids).find("batch_size 0; it must be 1"), std::string::npos);
  EXPECT_NE(complaint(R"("batch_size": 1, "inputs": {"stream": {"zero_data": true}})").find("a prompt"),
            std::string::npos);
  EXPECT_NE(
      complaint(R"("batch_size": 1, "inputs": {"text_input": {"zero_data": true}})").find("an empty prompt"),
      std::string::npos);
  EXPECT_NE(
      complaint(R"("batch_size": 1, "inputs": {"input_ids": {"random_data": true}})").find("random_data"),
      std::string::npos);
  EXPECT_NE(
      complaint(R"("batch_size": 1, "inputs": {"messages": {"zero_data": true}})").find("an empty prompt"),
      std::string::npos);
  for (const char* prompt : {"text_input", "messages"}) {
    const std::string input = std::string(R"("inputs": {")") + prompt + R"(": {"input_data_file": "once"}})";
    EXPECT_EQ(complaint(R"("batch_size": 1, )" + input), "");
  }
}

TEST(ModelConfigTest, APassiveGroupIsRefused) {
  auto config = Json::parse(demo_config());
  config["instance_group"] = {{{"kind", "KIND_CPU"}, {"passive", true}}};
  EXPECT_NE(complaint_of([&] { read_settings(config.dump(), "/r/m/1"); }).find("passive: true"),
            std::string::npos);
}

TEST(ModelConfigTest, AResponseCacheThatIsOffIsNone) {
  EXPECT_EQ(completion_error(R"({"response_cache": {"enable": false}})"), "");
}

TEST(ModelConfigTest, ParametersAreTheEnginesFields) {
  const ModelSettings settings =
      read_settings(demo_config({{"max_num_seqs", "3"}, {"enable_prefix_caching", "false"}}), "/r/m/1");
  EXPECT_EQ(settings.engine.max_num_seqs, 3);
  EXPECT_FALSE(settings.engine.enable_prefix_caching);
  EXPECT_GT(settings.engine.max_queued_requests, 0) << "Execute never waits, so the queue must have an end";
  EXPECT_TRUE(settings.decoupled);
  EXPECT_FALSE(settings.shares_kv_arena);
  EXPECT_TRUE(read_settings(demo_config({{"kv_arena", "shared"}}), "/r/m/1").shares_kv_arena);
}

TEST(ModelConfigTest, ParsersAreChatFormatsNames) {
  const ModelSettings settings =
      read_settings(demo_config({{"tool_parser", "hermes"}, {"reasoning_parser", "qwen3"}}), "/r/m/1");
  EXPECT_EQ(settings.tool_parser, "hermes");
  EXPECT_EQ(settings.reasoning_parser, "qwen3");
  EXPECT_NE(settings_error({{"tool_parser", "herms"}}).find("tool_parser 'herms' is not known; there are"),
            std::string::npos);
  EXPECT_NE(settings_error({{"tool_parser", "hermes"}, {"reasoning_parser", "openai_gptoss"}})
                .find("do not go with each other"),
            std::string::npos);
}

TEST(ModelConfigTest, ABadParameterIsNamedWithItsValue) {
  EXPECT_NE(settings_error({{"max_num_seqs", "lots"}}).find("lots"), std::string::npos);
  EXPECT_NE(settings_error({{"max_num_seqs", "lots"}}).find("max_num_seqs"), std::string::npos);
  EXPECT_NE(settings_error({{"kv_arena", "maybe"}}).find("maybe"), std::string::npos);
  EXPECT_NE(settings_error({{"no_such", "1"}}).find("no_such"), std::string::npos);
  EXPECT_NE(
      complaint_of([] { read_settings(R"({"parameters": {"model": "x"}})", "/r/m/1"); }).find("string_value"),
      std::string::npos);
}

// What each kind of instance asks of the engine, by the parameter device; empty where they contradict each
// other.
TEST(ModelConfigTest, AnInstanceIsWhereItsGroupAndTheParameterAgree) {
  struct Case {
    const char* device;  // "": the parameter is not there
    const char *model, *cpu, *gpu1;
  };
  for (const Case& c : {Case{"", "auto", "cpu", "cuda:1"}, Case{"auto", "auto", "cpu", "cuda:1"},
                        Case{"cpu", "cpu", "cpu", ""}, Case{"cuda", "cuda", "", "cuda:1"},
                        Case{"cuda:1", "cuda:1", "", "cuda:1"}, Case{"cuda:0", "cuda:0", "", ""}}) {
    const bool given = *c.device != '\0';
    const ModelSettings settings =
        read_settings(demo_config(given ? std::map<std::string, std::string>{{"device", c.device}}
                                        : std::map<std::string, std::string>{}),
                      "/r/m/1");
    for (const auto& [kind, expected] : {std::pair{TRITONSERVER_INSTANCEGROUPKIND_MODEL, c.model},
                                         std::pair{TRITONSERVER_INSTANCEGROUPKIND_CPU, c.cpu},
                                         std::pair{TRITONSERVER_INSTANCEGROUPKIND_GPU, c.gpu1}}) {
      std::string device;
      const std::string complaint = complaint_of([&] { device = settings.device_for(kind, 1); });
      EXPECT_EQ(device, expected) << c.device << " " << kind;
      EXPECT_EQ(complaint.empty(), *expected != '\0') << complaint;
    }
  }
}

TEST(ModelConfigTest, AGroupThatContradictsTheParameterIsRefusedBeforeAnythingIsLoaded) {
  const auto complaint = [](const std::string& group, const std::string& device) {
    auto config = Json::parse(demo_config({{"device", device}}));
    config["instance_group"] = Json::parse("[" + group + "]");
    return complaint_of([&] { read_settings(config.dump(), "/r/m/1"); });
  };
  EXPECT_EQ(
      complaint(R"({"kind": "KIND_GPU", "gpus": [0, 1]})", "cuda:0"),
      "parameter 'device' is \"cuda:0\", but instance_group has an instance of KIND_GPU on GPU 1; leave the "
      "parameter out, or write kind: KIND_MODEL in instance_group");
  EXPECT_NE(complaint(R"({"kind": "KIND_CPU"})", "cuda:1").find("KIND_CPU"), std::string::npos);
  EXPECT_EQ(complaint(R"({"kind": "KIND_GPU", "gpus": [1]})", "cuda:1"), "");
  EXPECT_EQ(complaint(R"({"kind": "KIND_GPU", "count": 2}, {"kind": "KIND_MODEL"})", "cuda:1"), "");
}

TEST(ModelConfigTest, AModelMayBeANameInTheHubsCache) {
  const std::filesystem::path cache =
      std::filesystem::temp_directory_path() / ("hub-" + std::to_string(getpid()));
  const std::filesystem::path repository = cache / "models--org--name";
  std::filesystem::create_directories(repository / "refs");
  std::filesystem::create_directories(repository / "snapshots");
  std::ofstream(repository / "refs" / "main") << "0123";
  std::filesystem::create_directory_symlink(kDemoModel, repository / "snapshots" / "0123");
  setenv("HF_HUB_CACHE", cache.c_str(), 1);
  const auto settings =
      read_settings(demo_config({{"model", "org/name"}, {"tokenizer", "org/name@main"}}), "/r/m/1");
  EXPECT_EQ(settings.engine.model, repository / "snapshots" / "0123");
  EXPECT_EQ(settings.engine.tokenizer, settings.engine.model);
  const std::string complaint = settings_error({{"model", "org/other"}});
  EXPECT_TRUE(complaint.starts_with("parameter model: no directory 'org/other', and the hub's cache"))
      << complaint;
  unsetenv("HF_HUB_CACHE");
  std::filesystem::remove_all(cache);
}

TEST(ModelConfigTest, AModelsPathIsRelativeToItsVersion) {
  EXPECT_EQ(read_settings(demo_config({{"model", "../weights"}}), "/r/m/1").engine.model, "/r/m/weights");
  EXPECT_EQ(read_settings(demo_config({{"model", "/elsewhere"}}), "/r/m/1").engine.model, "/elsewhere");
  EXPECT_EQ(read_settings("{}", kDemoModel).engine.model, kDemoModel);
  EXPECT_NE(complaint_of([] { read_settings("{}", "/r/m/1"); }).find("/r/m/1"), std::string::npos);
}

TEST(ModelConfigTest, TheCommandLineIsReadAndTheServersOwnSettingsAreNot) {
  const auto settings = read_backend_settings(
      R"({"cmdline": {"auto-complete-config": "true", "kv-arena-bytes": "4096", "exit-grace-secs": "9"}})");
  EXPECT_EQ(settings.kv_arena_bytes, 4096);
  EXPECT_EQ(settings.exit_grace_secs, 9);
  EXPECT_EQ(read_backend_settings("{}").kv_arena_bytes, 0);
  EXPECT_NE(
      complaint_of([] { read_backend_settings(R"({"cmdline": {"kv-arena-bytes": "-1"}})"); }).find("-1"),
      std::string::npos);
}

TEST(ModelConfigTest, AMisspeltSettingOfTheCommandLineIsRefusedWithThoseThereAre) {
  EXPECT_EQ(complaint_of([] { read_backend_settings(R"({"cmdline": {"exit-grace-sec": "9"}})"); }),
            "--backend-config=quire,exit-grace-sec is not a setting we know; there are kv-arena-bytes, "
            "exit-grace-secs, response-burst");
  EXPECT_EQ(complaint_of([] {
              read_backend_settings(
                  R"({"cmdline": {"auto-complete-config": "true", "backend-directory": "/b",
                      "min-compute-capability": "6.0", "default-max-batch-size": "4"}})");
            }),
            "");
}

}  // namespace
}  // namespace quire::triton::host
