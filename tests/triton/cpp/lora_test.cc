// Adapters: where they are found, that every engine of a model has them, and that requests may change them.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "lora_files.h"
#include "quire/error.h"
#include "triton_test.h"

namespace quire::triton::host {
namespace {

namespace fs = std::filesystem;

const std::string kAdapters = fs::canonical(QUIRE_ADAPTERS);
const std::map<std::string, std::string> kLora = {{"enable_lora", "true"}, {"max_loras", "2"}};
constexpr Instance kAsItIs{};
constexpr Instance kOfKindCPU{.kind = TRITONSERVER_INSTANCEGROUPKIND_CPU};

// A version directory of its own for each test.
class LoraTest : public HostTest {
 protected:
  LoraTest() : repository_(fs::temp_directory_path() / ("quire_lora_" + std::to_string(getpid()))) {
    fs::create_directories(version());
  }
  ~LoraTest() override { fs::remove_all(repository_); }

  fs::path version() const { return repository_ / "1"; }
  void write(const std::string& multi_lora) {
    std::ofstream(version() / kMultiLoraFile, std::ios::binary) << multi_lora;
  }
  std::shared_ptr<Model> load(std::map<std::string, std::string> parameters = {},
                              std::vector<Instance> instances = {kAsItIs}) {
    parameters.insert(kLora.begin(), kLora.end());
    return host().load("demo", demo_config(parameters),
                       {.instances = std::move(instances), .repository = repository_.string()});
  }
  std::string load_error() {
    try {
      load();
      return "";
    } catch (const HostError& error) {
      EXPECT_EQ(error.code(), TRITONSERVER_ERROR_INVALID_ARG);
      return error.what();
    }
  }
  std::string find_error(const std::string& path, const fs::path& root) {
    try {
      return "found " + find_lora(path, root, /*confined=*/true);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
  }

  const fs::path repository_;
};

ClientRequest named(const std::string& lora_name) {
  ClientRequest request = text_request(kStory, R"({"max_tokens": 20, "temperature": 0})");
  if (!lora_name.empty()) request.parameters = {{"lora_name", lora_name}};
  return request;
}

ClientRequest control(std::vector<RequestParameter> parameters) {
  ClientRequest request;
  request.parameters = std::move(parameters);
  return request;
}
ClientRequest loading(const std::string& name, const std::string& path) {
  return control({{"load_lora", true}, {"lora_name", name}, {"lora_path", path}});
}

std::string answer(Model& model, const ClientRequest& request, size_t instance = 0) {
  const auto call = model.infer(request, instance);
  call->wait();
  return call->error().empty() ? call->text() : call->error();
}

TEST_F(LoraTest, AListIsReadInItsOrder) {
  const auto loras = parse_multi_lora(R"( {"b": "x/y", "a": "/z", "é\u0041": "."} )", "F");
  ASSERT_EQ(loras.size(), 3U);
  EXPECT_EQ(loras[0].lora_name + loras[1].lora_name + loras[2].lora_name, "baéA");
  EXPECT_EQ(loras[0].lora_path + loras[1].lora_path + loras[2].lora_path, "x/y/z.");
  EXPECT_TRUE(parse_multi_lora("{}", "F").empty());
}

TEST_F(LoraTest, WhateverIsDeepIsRefusedWhereItBegins) {
  const std::string arrays(2'000'000, '[');
  std::string objects;
  for (int i = 0; i < 500'000; ++i) objects += "{\"a\":";
  for (const std::string& text : {arrays, objects, "{\"a\": " + arrays, "{\"a\": \"b\", \"c\": " + objects})
    EXPECT_THROW(parse_multi_lora(text, "F"), InvalidArgument);
}

TEST_F(LoraTest, PathsAreRelativeToTheirFile) {
  fs::create_directory_symlink(kAdapters, version() / "mine");
  write(R"({"s": "mine/sailor/", "j": ")" + kAdapters + R"(/json"})");
  const auto loras = read_multi_lora(version() / kMultiLoraFile);
  EXPECT_EQ(loras[0].lora_path, kAdapters + "/sailor");
  EXPECT_EQ(loras[1].lora_path, kAdapters + "/json");
}

TEST_F(LoraTest, WhatIsNoFileIsRefusedUnopened) {
  fs::create_directory(version() / kMultiLoraFile);
  EXPECT_NE(load_error().find("multi_lora.json is not a file"), std::string::npos);
  fs::remove(version() / kMultiLoraFile);
  ASSERT_EQ(::mkfifo((version() / kMultiLoraFile).c_str(), 0600), 0);  // to open it would take for ever
  EXPECT_NE(load_error().find("multi_lora.json is not a file"), std::string::npos);
}

TEST_F(LoraTest, ALinkThatLeadsNowhereIsAFileThatIsNotThere) {
  fs::create_symlink("gone", version() / kMultiLoraFile);
  EXPECT_NE(load_error().find("multi_lora.json: there is no such file"), std::string::npos);
  fs::remove(version() / kMultiLoraFile);
  EXPECT_EQ(load_error(), "");
}

TEST_F(LoraTest, ARootIsNotLeft) {
  const fs::path root = fs::canonical(repository_) / "root";
  fs::copy(kAdapters, root, fs::copy_options::recursive);
  fs::copy(kAdapters, repository_ / "root_of_others", fs::copy_options::recursive);
  fs::create_directory_symlink("sailor", root / "inside");
  fs::create_directory_symlink("../root_of_others", root / "outside");
  fs::create_directory(root / "partly");
  fs::create_symlink("/etc/passwd", root / "partly" / "adapter_config.json");
  for (const char* path : {"sailor", "./sailor/", "inside", "json/../sailor", "../root/sailor"})
    EXPECT_EQ(find_error(path, root), "found " + (root / "sailor").string());
  EXPECT_EQ(find_error("outside/../root/json", root), "found " + (root / "json").string());
  for (const std::string path :
       {"..", "/", "/etc", "outside", "outside/json", "../root_of_others/json", "nowhere",
        "sailor/adapter_config.json", "partly", "sailor/../../root_of_others"}) {
    EXPECT_NE(find_error(path, root).find("is no directory in the lora_root"), std::string::npos) << path;
  }
  EXPECT_EQ(find_lora("/nowhere/x", root, /*confined=*/false), "/nowhere/x");
}

TEST_F(LoraTest, EveryEngineHasTheAdapters) {
  write(R"({"first": ")" + kAdapters + R"(/sailor"})");
  const auto model = load({{"enable_lora_control", "true"}}, {kAsItIs, kOfKindCPU});
  const std::string base = answer(*model, named(""), 0);
  const std::string sailor = answer(*model, named("first"), 0);
  EXPECT_NE(base, sailor);
  EXPECT_EQ(answer(*model, named("first"), 1), sailor);
  EXPECT_NE(answer(*model, loading("second", kAdapters + "/json"), 1).find("\"second\""), std::string::npos);
  const std::string json = answer(*model, named("second"), 0);
  EXPECT_EQ(answer(*model, named("second"), 1), json);
  EXPECT_NE(json, sailor);
  EXPECT_NE(json, base);
  answer(*model, control({{"unload_lora", true}, {"lora_name", std::string("first")}}), 0);
  for (const size_t instance : {0, 1}) {
    EXPECT_NE(answer(*model, named("first"), instance).find("but this model has second;"), std::string::npos);
    EXPECT_EQ(answer(*model, named("second"), instance), json);
  }
}

TEST_F(LoraTest, AFailedLoadSaysWhichEntry) {
  write(R"({"good": ")" + kAdapters + R"(/sailor", "bad": "."})");
  const std::string error = load_error();
  EXPECT_NE(error.find("/1/multi_lora.json: 'bad': "), std::string::npos) << error;
  EXPECT_NE(error.find("adapter_config.json"), std::string::npos) << error;
  write("{}");
  EXPECT_EQ(load_error(), "");
}

// Execute does not wait for them, so there is an end to how many wait.
TEST_F(LoraTest, ChangesComeOneAfterTheOtherAndNotWithoutEnd) {
  const auto model = load({{"enable_lora_control", "true"}});
  std::vector<ClientRequest> requests;
  for (int i = 0; i < 300; ++i) {
    requests.push_back(i % 2 == 0 ? loading("a", kAdapters + "/json")
                                  : control({{"unload_lora", true}, {"lora_name", std::string("a")}}));
  }
  const auto calls = model->infer_batch(requests);
  EXPECT_EQ(answer(*model, named("")).rfind(kStory, 0), 0U);
  int num_refused = 0;
  for (size_t i = 0; i < calls.size(); ++i) {
    calls[i]->wait();
    if (calls[i]->error().empty()) continue;
    EXPECT_NE(calls[i]->error().find(num_refused == 0 ? "wait already" : ""), std::string::npos);
    ++num_refused;
    if (i < 64) ADD_FAILURE() << i << ": " << calls[i]->error();
  }
  EXPECT_GT(num_refused, 0);
}

TEST_F(LoraTest, ChangesThatWaitAreAnsweredWhenTheModelIsFinalized) {
  const auto model = load({{"enable_lora_control", "true"}});
  std::vector<ClientRequest> requests;
  for (int i = 0; i < 60; ++i) requests.push_back(loading(std::to_string(i), kAdapters + "/json"));
  const auto calls = model->infer_batch(requests);
  model->finalize();
  for (const auto& call : calls) {
    call->wait();
    EXPECT_TRUE(call->error().empty() || call->error().find("unloaded") != std::string::npos)
        << call->error();
  }
}

TEST_F(LoraTest, AChangeOfAClientThatHasGoneIsNotMade) {
  const auto model = load({{"enable_lora_control", "true"}});
  ClientRequest request = loading("a", kAdapters + "/json");
  request.cancelled = true;
  EXPECT_NE(answer(*model, request).find("cancelled"), std::string::npos);
  EXPECT_EQ(answer(*model, control({{"list_loras", true}})), "[]");
}

}  // namespace
}  // namespace quire::triton::host
