// The engine ends because its thread is out of memory.
#include <filesystem>
#include <fstream>

#include "allocation_fault.h"
#include "triton_test.h"

namespace quire::triton::host {
namespace {

class EngineFailureTest : public HostTest {
 protected:
  // Makes the engine's thread fail when it takes in a request for that many tokens, which needs room.
  std::shared_ptr<Call> kill(Model& model) {
    fail_allocation("quire-core", 2000 * sizeof(int32_t));
    return model.infer(text_request(kStory, R"({"max_tokens": 2040, "ignore_eos": true})"));
  }

  // Engines that there are now are not failed by `kill`, which goes by the names of threads.
  static void spare_engines() {
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      std::string name;
      std::getline(std::ifstream(task.path() / "comm") >> std::ws, name);
      if (name == "quire-core") std::ofstream(task.path() / "comm") << "quire-spared";
    }
  }
};

TEST_F(EngineFailureTest, EveryRequestIsToldWhyAndTheModelIsUnloadedOnceFromAnotherThread) {
  const auto model = load_demo();
  std::vector<ClientRequest> requests(6,
                                      stream_request(kStory, R"({"max_tokens": 1500, "ignore_eos": true})"));
  requests[5] = text_request(kStory, R"({"max_tokens": 1500, "ignore_eos": true})");
  const auto calls = model->infer_batch(requests);
  calls[0]->wait_for_responses(2);
  const auto killer = kill(*model);
  killer->wait();
  ASSERT_TRUE(disarm_allocation_fault());
  EXPECT_EQ(killer->error_code(), TRITONSERVER_ERROR_INTERNAL) << killer->error();
  for (const auto& call : calls) {
    call->wait();
    EXPECT_EQ(call->error_code(), TRITONSERVER_ERROR_INTERNAL) << call->error();
    EXPECT_NE(call->error().find("bad_alloc"), std::string::npos) << call->error();
    EXPECT_FALSE(call->counted_success());
  }
  ASSERT_TRUE(host().wait_for_unload());
  ASSERT_EQ(host().unloads().size(), 1U);
  EXPECT_EQ(host().unloads()[0].model, "demo");
  EXPECT_NE(host().unloads()[0].thread, std::this_thread::get_id());
  EXPECT_THROW(model->infer(text_request(kStory)), HostError);
}

TEST_F(EngineFailureTest, AReloadServesAgain) {
  for (size_t i = 0; i < 2; ++i) {
    const auto model = load_demo();
    const auto call = model->infer(text_request(kStory, R"({"max_tokens": 2})"));
    call->wait();
    EXPECT_EQ(call->error(), "");
    kill(*model)->wait();
    ASSERT_TRUE(disarm_allocation_fault());
    ASSERT_TRUE(host().wait_for_unload(i + 1));
    EXPECT_EQ(host().unloads().size(), i + 1);
  }
}

// A server that is slow to unload asks, and sends requests, meanwhile.
TEST_F(EngineFailureTest, AModelWhoseEngineHasEndedIsNotReadyAndRefusesRequests) {
  Host slow;
  const auto model = slow.load("demo", demo_config());
  Faults::instance().arm("TRITONSERVER_ServerUnloadModel", 0);
  kill(*model)->wait();
  ASSERT_TRUE(disarm_allocation_fault());
  EXPECT_NE(model->not_ready().find("bad_alloc"), std::string::npos) << model->not_ready();
  const auto late = model->infer(text_request(kStory));
  late->wait();
  EXPECT_EQ(late->error_code(), TRITONSERVER_ERROR_UNAVAILABLE);
  EXPECT_NE(late->error().find("the engine has ended"), std::string::npos) << late->error();
}

// The front end has ended the request, so nobody hears of the failure through it.
TEST_F(EngineFailureTest, AnEngineThatFailsForNobodyIsUnloadedToo) {
  const auto model = load_demo();
  ClientRequest request = text_request(kStory, R"({"max_tokens": 2040, "ignore_eos": true})");
  request.cancelled = true;
  fail_allocation("quire-core", 2000 * sizeof(int32_t));
  // A request may also end before the engine's thread has looked at it; then there is another.
  try {
    for (int i = 0; i < 1000 && host().unloads().empty(); ++i) model->infer(request)->wait();
  } catch (const HostError&) {  // it is unloaded
  }
  EXPECT_TRUE(host().wait_for_unload());
  EXPECT_TRUE(disarm_allocation_fault());
}

TEST_F(EngineFailureTest, AnEngineThatWasReplacedTakesNobodyAlong) {
  const auto old = load_demo();
  const auto reloaded = load_demo();
  kill(*old)->wait();
  ASSERT_TRUE(disarm_allocation_fault());
  EXPECT_NE(old->not_ready(), "");
  old->unload();
  const auto call = reloaded->infer(text_request(kStory, R"({"max_tokens": 2})"));
  call->wait();
  EXPECT_EQ(call->error(), "");
  EXPECT_TRUE(host().unloads().empty());
}

TEST_F(EngineFailureTest, OneModelsFailureLeavesTheOthersAlone) {
  const auto other = host().load("other", demo_config());
  spare_engines();
  const auto model = load_demo();
  const auto call = other->infer(stream_request(kStory, R"({"max_tokens": 100, "ignore_eos": true})"));
  call->wait_for_responses(1);
  kill(*model)->wait();
  ASSERT_TRUE(host().wait_for_unload());
  call->wait();
  EXPECT_EQ(call->error(), "");
  EXPECT_EQ(other->not_ready(), "");
}

}  // namespace
}  // namespace quire::triton::host
