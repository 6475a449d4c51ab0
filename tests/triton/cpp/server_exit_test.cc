#include "triton_test.h"

namespace quire::triton::host {
namespace {

using namespace std::chrono_literals;

class ServerExitTest : public HostTest {
 protected:
  static constexpr const char* kEndless = R"({"max_tokens": 2000, "ignore_eos": true})";
};

TEST_F(ServerExitTest, RequestsThatTakeTooLongAreToldThatTheServerEnds) {
  Host ending(R"({"cmdline": {"exit-grace-secs": "0"}})");
  const auto model = ending.load("demo", demo_config());
  const auto stream = model->infer(stream_request(kStory, kEndless));
  const auto single = model->infer(text_request(kStory, kEndless));
  stream->wait_for_responses(2);
  ending.begin_exit();
  for (const auto& call : {stream, single}) {
    call->wait();
    EXPECT_EQ(call->error_code(), TRITONSERVER_ERROR_UNAVAILABLE);
    EXPECT_NE(call->error().find("shutting down"), std::string::npos) << call->error();
  }
}

TEST_F(ServerExitTest, RequestsMayFinishWithinTheGrace) {
  Host ending(R"({"cmdline": {"exit-grace-secs": "60"}})");
  const auto model = ending.load("demo", demo_config());
  const auto call = model->infer(stream_request(kStory, R"({"max_tokens": 400, "ignore_eos": true})"));
  call->wait_for_responses(1);
  ending.begin_exit();
  call->wait();
  EXPECT_EQ(call->error(), "");
}

TEST_F(ServerExitTest, ASettingThatIsNoNumberFailsTheStart) {
  for (const char* name : {"exit-grace-secs", "kv-arena-bytes", "response-burst"}) {
    for (const char* value : {"soon", "-1", "1.5", "", "99999999999999999999"}) {
      const std::string config = std::string(R"({"cmdline": {")") + name + R"(": ")" + value + R"("}})";
      try {
        Host host(config);
        FAIL() << config;
      } catch (const HostError& error) {
        EXPECT_EQ(error.code(), TRITONSERVER_ERROR_INVALID_ARG);
        EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
      }
    }
  }
}

}  // namespace
}  // namespace quire::triton::host
