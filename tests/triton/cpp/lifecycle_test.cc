// Models come and go, and nothing of them stays.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "host/server_log.h"
#include "model_config.h"
#include "triton_test.h"

namespace quire::triton::host {
namespace {

using namespace std::chrono_literals;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

class LifecycleTest : public HostTest {
 protected:
  std::string load_error(const std::string& config, const LoadOptions& options = {}) {
    try {
      host().load("bad", config, options);
      return "";
    } catch (const HostError& error) {
      return error.what();
    }
  }
  // A thread that was joined may still be listed for a moment.
  static bool threads_return_to(size_t count) {
    for (int i = 0; i < 1000 && num_threads() != count; ++i) std::this_thread::sleep_for(1ms);
    return num_threads() == count;
  }
};

TEST_F(LifecycleTest, TheBackendAsksForInstancesWithoutDevices) {
  host();
  TRITONBACKEND_BackendAttribute attributes;
  EXPECT_EQ(TRITONBACKEND_GetBackendAttribute(nullptr, &attributes), nullptr);
  EXPECT_EQ(attributes.preferred_groups, std::vector{TRITONSERVER_INSTANCEGROUPKIND_MODEL});
}

TEST_F(LifecycleTest, AModelThatIsLoadedIsReadyAndLogged) {
  const auto model = load_demo();
  EXPECT_EQ(model->not_ready(), "");
  const auto lines = ServerLog::instance().take();
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].text.find("model 'demo'"), std::string::npos) << lines[0].text;
}

TEST_F(LifecycleTest, AConfigurationThatTheServerDoesNotWantCompletedIsLeftAlone) {
  const std::string config = complete_config(demo_config());
  const auto model = host().load("demo", config, {.auto_complete = false});
  EXPECT_EQ(model->config(), config);
}

TEST_F(LifecycleTest, AModelThatNobodyMayCompleteIsToldWhatToWrite) {
  const std::string error = load_error(demo_config(), {.auto_complete = false});
  EXPECT_NE(error.find("lists no input 'text_input', 'input_ids' or 'messages'"), std::string::npos) << error;
  EXPECT_NE(error.find(R"({ name: "text_input" data_type: TYPE_STRING dims: [ 1 ] optional: true })"),
            std::string::npos)
      << error;
  auto config = nlohmann::json::parse(demo_config());
  config["input"] = {{{"name", "input_ids"}, {"data_type", "TYPE_INT32"}, {"dims", {-1}}}};
  EXPECT_NE(load_error(config.dump(), {.auto_complete = false}).find("lists no output 'text_output'"),
            std::string::npos);
  config["output"] = {{{"name", "text_output"}, {"data_type", "TYPE_STRING"}, {"dims", {-1}}}};
  EXPECT_EQ(load_error(config.dump(), {.auto_complete = false}), "");
}

TEST_F(LifecycleTest, AModelIsFoundInItsVersionsDirectory) {
  const auto repository =
      std::filesystem::temp_directory_path() / ("quire_triton_" + std::to_string(getpid()));
  std::filesystem::create_directories(repository);
  std::filesystem::create_directory_symlink(kDemoModel, repository / "7");
  const LoadOptions options{.version = 7, .repository = repository.string()};
  const auto model = host().load("demo", demo_config({{"model", "."}}), options);
  const auto call = model->infer(text_request(kStory, R"({"max_tokens": 2})"));
  call->wait();
  EXPECT_EQ(call->error(), "");
  EXPECT_EQ(host().metric("quire:generation_tokens_total", {{"version", "7"}}), 2);
  std::filesystem::remove_all(repository);
}

TEST_F(LifecycleTest, AFailedLoadLeavesNothingBehind) {
  host();
  load_error(demo_config({{"model", "/nowhere"}}));  // the metric families stay from here on
  const size_t num_objects = Ledger::instance().num_alive();
  const size_t threads = num_threads();
  const size_t files = num_open_files();
  const auto broken = std::filesystem::temp_directory_path() / ("quire_broken_" + std::to_string(getpid()));
  std::filesystem::copy(kDemoModel, broken);
  std::filesystem::resize_file(broken / "model.safetensors", 100'000);
  for (const auto& [parameters, needle] :
       std::vector<std::pair<std::map<std::string, std::string>, std::string>>{
           {{{"model", "/nowhere"}}, "/nowhere"},
           {{{"model", broken.string()}}, "model.safetensors"},
           {{{"block_size", "17"}}, "block_size"},
           {{{"kv_cache_memory_bytes", "1"}}, ""},
           {{{"temperature", "1"}}, "temperature"},
           {{{"max_num_seqs", "many"}}, "max_num_seqs"},
           {{{"kv_arena", "shared"}}, "kv-arena-bytes"},
           {{{"device", "cuda:99"}}, "device"},
       }) {
    const std::string error = load_error(demo_config(parameters));
    EXPECT_NE(error, "");
    EXPECT_NE(error.find(needle), std::string::npos) << error;
    EXPECT_EQ(Ledger::instance().num_alive(), num_objects) << error;
    EXPECT_TRUE(threads_return_to(threads)) << error;
    EXPECT_EQ(num_open_files(), files) << error;
  }
  std::filesystem::remove_all(broken);
  EXPECT_EQ(host().unloads().size(), 0U);
}

TEST_F(LifecycleTest, FiftyLoadsLeaveAsManyThreadsAndAsMuchMemoryAsOne) {
  const auto cycle = [this] {
    const auto model = load_demo();
    const auto call = model->infer(stream_request(kStory, R"({"max_tokens": 4})"));
    call->wait();
    EXPECT_EQ(call->error(), "");
    model->unload();
    Ledger::instance().forget_the_dead();
  };
  for (int i = 0; i < (kSanitized ? 2 : 5); ++i) cycle();
  const size_t threads = num_threads();
  const size_t files = num_open_files();
  const size_t bytes = resident_bytes();
  for (int i = 0; i < (kSanitized ? 4 : 50); ++i) cycle();
  EXPECT_TRUE(threads_return_to(threads));
  EXPECT_EQ(num_open_files(), files);
  // The weights alone are more than 10 MB.
  if (!kSanitized) {
    EXPECT_LT(resident_bytes(), bytes + (6 << 20));
  }
}

// The server waits for them. A backend that is finalized all the same must not hang, and must answer.
TEST_F(LifecycleTest, RequestsInFlightWhenAModelIsFinalizedAreAnswered) {
  for (const bool decoupled : {true, false}) {
    const auto model = host().load("demo", demo_config({{"max_num_seqs", "2"}}, decoupled));
    const char* endless = R"({"max_tokens": 2000, "ignore_eos": true})";
    std::vector<ClientRequest> requests(
        4, decoupled ? stream_request(kStory, endless) : text_request(kStory, endless));
    const auto calls = model->infer_batch(requests);
    if (decoupled) calls[0]->wait_for_responses(3);
    model->finalize();
    for (const auto& call : calls) {
      ASSERT_TRUE(call->wait_until_done(0ms));
      EXPECT_EQ(call->error_code(), TRITONSERVER_ERROR_UNAVAILABLE);
    }
  }
}

TEST_F(LifecycleTest, ModelsMayShareTheMemoryOfTheirKVCaches) {
  Host sharing(R"({"cmdline": {"kv-arena-bytes": "33554432"}})");
  const std::string config = demo_config({{"kv_arena", "shared"}, {"kv_cache_memory_bytes", "0"}});
  const auto first = sharing.load("first", config);
  const auto second = sharing.load("second", config);
  const auto one = first->infer(text_request(kStory, R"({"max_tokens": 4, "temperature": 0})"));
  const auto two = second->infer(text_request(kStory, R"({"max_tokens": 4, "temperature": 0})"));
  one->wait();
  two->wait();
  EXPECT_EQ(one->error(), "");
  EXPECT_EQ(one->text(), two->text());
}

TEST_F(LifecycleTest, ABackendWithABadCommandLineDoesNotStart) {
  for (const char* bytes : {"-1", "64MB", "", "99999999999999999999"}) {
    const std::string config = std::string(R"({"cmdline": {"kv-arena-bytes": ")") + bytes + "\"}}";
    try {
      Host bad(config);
      ADD_FAILURE() << bytes;
    } catch (const HostError& error) {
      EXPECT_EQ(error.code(), TRITONSERVER_ERROR_INVALID_ARG);
      EXPECT_NE(std::string(error.what()).find("kv-arena-bytes"), std::string::npos);
    }
  }
}

TEST_F(LifecycleTest, ABackendDoesNotStartUnderAnotherApi) {
  api_major = 2;
  std::string refusal;
  try {
    Host later;
  } catch (const std::exception& error) {
    refusal = error.what();
  }
  api_major = 1;
  EXPECT_NE(refusal.find("API is 2.19; the quire backend is made for 1.x"), std::string::npos) << refusal;
  EXPECT_NO_THROW(Host());
}

TEST_F(LifecycleTest, ABackendMayBeFinalizedAndInitializedAgain) {
  for (int i = 0; i < 2; ++i) {
    const auto call = load_demo()->infer(text_request(kStory, R"({"max_tokens": 2})"));
    call->wait();
    EXPECT_EQ(call->error(), "");
    stop_host();
  }
}

}  // namespace
}  // namespace quire::triton::host
