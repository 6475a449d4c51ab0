#include "triton_test.h"

namespace quire::triton::host {
namespace {

constexpr const char* kEndless = R"({"max_tokens": 2000, "ignore_eos": true})";

// The demo model's configuration with this queue policy.
std::string policed(const std::string& policy) {
  std::string config = demo_config();
  return config.insert(1, R"("dynamic_batching": {"default_queue_policy": {)" + policy + "}}, ");
}

class TimeoutTest : public HostTest {
 protected:
  std::string error_of(const std::shared_ptr<Model>& model, uint64_t timeout_us,
                       const std::string& sampling = kEndless) {
    ClientRequest request = text_request(kStory, sampling);
    request.timeout_us = timeout_us;
    const auto call = model->infer(request);
    call->wait();
    return call->error();
  }
};

TEST_F(TimeoutTest, TheServersTimeoutEndsARequest) {
  const auto model = load_demo();
  EXPECT_EQ(error_of(model, 250'000), "the request was not finished within its timeout of 250000 us");
}

TEST_F(TimeoutTest, AShorterDeadlineRulesAndReturnsWhatThereIs) {
  const auto model = load_demo();
  EXPECT_EQ(error_of(model, 30'000'000, R"({"max_tokens": 2000, "ignore_eos": true, "deadline_ms": 60})"),
            "");
}

TEST_F(TimeoutTest, TheConfigurationsTimeoutHoldsForRequestsWithoutOne) {
  // 64-bit numbers are strings in the server's JSON.
  const auto model = host().load(
      "demo", policed(R"("default_timeout_microseconds": "200000", "allow_timeout_override": true)"));
  EXPECT_EQ(error_of(model, 0), "the request was not finished within its timeout of 200000 us");
  EXPECT_EQ(error_of(model, 100'000), "the request was not finished within its timeout of 100000 us");
  EXPECT_EQ(error_of(model, 30'000'000), "the request was not finished within its timeout of 200000 us");
}

TEST_F(TimeoutTest, AnOverrideThatIsNotAllowedIsNone) {
  const auto model = host().load("demo", policed(R"("default_timeout_microseconds": "200000")"));
  EXPECT_EQ(error_of(model, 30'000'000), "the request was not finished within its timeout of 200000 us");
}

TEST_F(TimeoutTest, TheConfigurationsQueueIsTheEngines) {
  const auto model = host().load("demo", policed(R"("max_queue_size": 1)"));
  const auto running = model->infer(stream_request(kStory, kEndless));
  EXPECT_NE(error_of(model, 0).find("max_queued_requests 1"), std::string::npos);
  running->cancel();
  running->wait();
}

}  // namespace
}  // namespace quire::triton::host
