#include <nlohmann/json.hpp>

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

TEST_F(TimeoutTest, ATimeoutThatCannotBeMetIsRefusedAsATimeout) {
  const auto model = load_demo({{"max_num_seqs", "2"}});
  EXPECT_EQ(error_of(model, 0, R"({"max_tokens": 20, "ignore_eos": true})"), "");  // now its speed is known
  std::string long_prompt;
  for (int i = 0; i < 500; ++i) long_prompt += " a house";
  std::vector<std::shared_ptr<Call>> ahead;
  for (int i = 0; i < 12; ++i)
    ahead.push_back(model->infer(text_request(long_prompt, R"({"max_tokens": 2})")));
  const std::string error = error_of(model, 1'000);
  EXPECT_TRUE(error.starts_with("the request's timeout is 1000 us: deadline_ms 1 cannot be met")) << error;
  for (const auto& call : ahead) call->wait();
}

TEST_F(TimeoutTest, AShorterDeadlineRulesAndReturnsWhatThereIs) {
  const auto model = load_demo();
  EXPECT_EQ(error_of(model, 30'000'000, R"({"max_tokens": 2000, "ignore_eos": true, "deadline_ms": 60})"),
            "");
}

// One request at a time, and one that runs.
class QueuePolicyTest : public TimeoutTest {
 protected:
  static constexpr const char* kWaitedTooLong =
      "the request waited longer than default_timeout_microseconds of its model (100 ms); try again later";

  std::shared_ptr<Model> load(const std::string& policy) {
    nlohmann::json config = nlohmann::json::parse(policed(policy));
    config["parameters"]["max_num_seqs"]["string_value"] = "1";
    return host().load("demo", config.dump());
  }
  // The error of a request that comes while another runs.
  std::string error_behind_another(const std::shared_ptr<Model>& model, uint64_t timeout_us) {
    const auto running = model->infer(stream_request(kStory, kEndless));
    running->wait_for_responses(1);
    const std::string error = error_of(model, timeout_us);
    running->cancel();
    running->wait();
    EXPECT_EQ(running->error_code(), TRITONSERVER_ERROR_CANCELLED) << "it ran for longer than the timeout";
    return error;
  }
};

TEST_F(QueuePolicyTest, TheConfigurationsTimeoutEndsWhatWaits) {
  // 64-bit numbers are strings in the server's JSON.
  const auto model = load(R"("default_timeout_microseconds": "100000", "allow_timeout_override": true)");
  EXPECT_EQ(error_behind_another(model, 0), kWaitedTooLong);
  EXPECT_EQ(error_behind_another(model, 30'000'000), kWaitedTooLong) << "nobody may wait longer";
}

TEST_F(QueuePolicyTest, TheConfigurationsTimeoutEndsNothingThatRuns) {
  const auto model = load(R"("default_timeout_microseconds": "100000")");
  EXPECT_EQ(error_of(model, 0), "");
}

TEST_F(QueuePolicyTest, AnOverrideThatIsNotAllowedIsNone) {
  const auto model = load(R"("default_timeout_microseconds": "200000")");
  EXPECT_EQ(error_of(model, 1'000, R"({"max_tokens": 400, "ignore_eos": true})"), "");
}

TEST_F(QueuePolicyTest, TheQueueHoldsWhatWaitsAndNotWhatRuns) {
  const auto model = load(R"("max_queue_size": 1)");
  const auto running = model->infer(stream_request(kStory, kEndless));
  running->wait_for_responses(1);
  const auto waiting = model->infer(text_request(kStory, R"({"max_tokens": 2})"));
  EXPECT_NE(error_of(model, 0).find("would exceed max_waiting_requests 1"), std::string::npos);
  running->cancel();
  running->wait();
  waiting->wait();
  EXPECT_EQ(waiting->error(), "");
}

TEST_F(QueuePolicyTest, ADelayInsteadOfARefusalIsNoneOfOurs) {
  try {
    load(R"("default_timeout_microseconds": "200000", "timeout_action": "DELAY")");
    FAIL();
  } catch (const HostError& error) {
    EXPECT_NE(std::string(error.what()).find("timeout_action is DELAY; it must be REJECT"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace quire::triton::host
