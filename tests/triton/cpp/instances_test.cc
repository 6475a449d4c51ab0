// A model's instances: those on one device share an engine.
#include "triton_test.h"

namespace quire::triton::host {
namespace {

using namespace std::chrono_literals;

constexpr Instance
    kByParameter{};  // of KIND_MODEL: "auto" here, which is the CPU where there is nothing else
constexpr Instance kOnCPU{.kind = TRITONSERVER_INSTANCEGROUPKIND_CPU};
constexpr Instance kOnGPU99{.kind = TRITONSERVER_INSTANCEGROUPKIND_GPU, .device_id = 99};
const char kEndlessOne[] = R"({"max_tokens": 2000, "ignore_eos": true})";

class InstancesTest : public HostTest {
 protected:
  std::shared_ptr<Model> load_on(std::vector<Instance> instances,
                                 const std::map<std::string, std::string>& parameters = {}) {
    return host().load("demo", demo_config(parameters), {.instances = std::move(instances)});
  }
  std::string load_error(std::vector<Instance> instances,
                         const std::map<std::string, std::string>& parameters = {}) {
    try {
      load_on(std::move(instances), parameters);
      return "";
    } catch (const HostError& error) {
      EXPECT_EQ(error.code(), TRITONSERVER_ERROR_INVALID_ARG);
      return error.what();
    }
  }
  double tokens_of(const char* engine) {
    return host().metric("quire:generation_tokens_total", {{"engine", engine}});
  }
};

TEST_F(InstancesTest, InstancesOnOneDeviceShareItsEngine) {
  const auto model = load_on({kOnCPU, kOnCPU, kOnCPU});
  for (size_t i = 0; i < 3; ++i)
    model->infer(text_request(kStory, R"({"max_tokens": 2, "ignore_eos": true})"), i)->wait();
  EXPECT_EQ(tokens_of("0"), 6);
  EXPECT_EQ(Ledger::instance().sum_of_metrics("quire:num_kv_cache_blocks", {{"engine", "1"}}), 0);
}

TEST_F(InstancesTest, EachDeviceHasAnEngineAndItsMetrics) {
  const auto model = load_on({kByParameter, kOnCPU});
  const auto one = model->infer(text_request(kStory, R"({"temperature": 0, "max_tokens": 3})"), 0);
  const auto other = model->infer(text_request(kStory, R"({"temperature": 0, "max_tokens": 3})"), 1);
  one->wait();
  other->wait();
  EXPECT_EQ(one->text(), other->text());
  EXPECT_EQ(tokens_of("0"), 3);
  EXPECT_EQ(tokens_of("1"), 3);
  EXPECT_EQ(model->not_ready(0) + model->not_ready(1), "");
}

// The server gives a request to any instance: the one that cancels comes to another than the one it names.
TEST_F(InstancesTest, ACancelReachesTheRequestsOfEveryEngine) {
  const auto model = load_on({kByParameter, kOnCPU});
  ClientRequest request = stream_request(kStory, kEndlessOne);
  request.id = "ours";
  const auto first = model->infer(request, 0);
  const auto second = model->infer(request, 1);
  second->wait_for_responses(1);
  ClientRequest cancel;
  cancel.id = "ours";
  cancel.inputs = {bool_input("cancel", true)};
  model->infer(cancel, 0)->wait();
  for (const auto& call : {first, second}) {
    call->wait();
    EXPECT_EQ(call->error_code(), TRITONSERVER_ERROR_CANCELLED);
  }
}

TEST_F(InstancesTest, ANameIsTakenWhicheverEngineHasIt) {
  const auto model = load_on({kByParameter, kOnCPU});
  ClientRequest request = stream_request(kStory, kEndlessOne);
  request.inputs.push_back(string_input("request_id", "mine"));
  const auto first = model->infer(request, 0);
  const auto second = model->infer(request, 1);
  second->wait();
  EXPECT_EQ(second->error_code(), TRITONSERVER_ERROR_INVALID_ARG);
  first->cancel();
  first->wait();
}

TEST_F(InstancesTest, RequestsOutliveTheirInstance) {
  const auto model = load_on({kOnCPU, kOnCPU});
  const auto call = model->infer(stream_request(kStory, R"({"max_tokens": 200, "ignore_eos": true})"), 1);
  call->wait_for_responses(1);
  model->remove_last_instance();
  call->wait();
  EXPECT_EQ(call->error(), "");
  EXPECT_EQ(model->num_successes(), 0U) << "statistics are an instance's";
  model->infer(text_request(kStory, R"({"max_tokens": 2})"))->wait();
  EXPECT_EQ(model->num_successes(), 1U);
}

TEST_F(InstancesTest, AGPUThatIsNotThereFailsTheLoadByItsName) {
  host();
  load_error({kOnGPU99});  // the metric families stay from here on
  const size_t num_objects = Ledger::instance().num_alive();
  for (const auto& instances : {std::vector{kOnGPU99}, std::vector{kOnCPU, kOnGPU99}}) {
    const std::string error = load_error(instances);
    EXPECT_NE(error.find("cuda:99"), std::string::npos) << error;
    EXPECT_EQ(Ledger::instance().num_alive(), num_objects)
        << "what the first instance had loaded is gone too";
  }
}

// The server first tells where the instances of a group without a kind are.
TEST_F(InstancesTest, AnInstanceThatContradictsTheParameterFailsTheLoad) {
  EXPECT_EQ(
      load_error({kOnGPU99}, {{"device", "cpu"}}),
      "parameter 'device' is \"cpu\", but instance_group has an instance of KIND_GPU on GPU 99; leave the "
      "parameter out, or write kind: KIND_MODEL in instance_group");
  EXPECT_NE(load_error({kOnCPU}, {{"device", "cuda:1"}}).find("KIND_CPU"), std::string::npos);
}

}  // namespace
}  // namespace quire::triton::host
