// Fields of a request: as inputs, as parameters and in sampling_parameters; and its timeouts.
#include <limits>

#include "engine/field_samples.h"
#include "request_adapter_fixture.h"
#include "util/sanitized.h"

namespace quire::triton::host {
namespace {

class RequestFieldsTest : public RequestAdapterFixture {};

TEST_F(RequestFieldsTest, WhatIsReturnedIsComputed) {
  EXPECT_EQ(
      adapt(with(text_request("Once"), bool_input("return_logprobs", true))).request.sampling_params.logprobs,
      0);
  EXPECT_EQ(
      adapt(with(text_request("Once", R"({"logprobs": 3})"), bool_input("return_cumulative_logprob", true)))
          .request.sampling_params.logprobs,
      3);
  EXPECT_TRUE(adapt(text_request("Once")).request.sampling_params.detokenize);
  EXPECT_FALSE(adapt(with_outputs(text_request("Once"), {"output_ids"})).request.sampling_params.detokenize);
  EXPECT_TRUE(adapt(with_outputs(text_request("Once", R"({"stop": "."})"), {"output_ids"}))
                  .request.sampling_params.detokenize);
}

TEST_F(RequestFieldsTest, ParametersAreFieldsAndSamplingParametersWin) {
  ClientRequest request = text_request("Once", R"({"max_tokens": 7})");
  request.parameters = {{"max_tokens", int64_t{5}},
                        {"temperature", 0.5},
                        {"ignore_eos", true},
                        {"stop", std::string("x")},
                        {"priority", int64_t{-2}}};
  const AdaptedRequest adapted = adapt(request);
  EXPECT_EQ(adapted.request.sampling_params.max_tokens, 7);
  EXPECT_EQ(adapted.request.sampling_params.temperature, 0.5F);
  EXPECT_TRUE(adapted.request.sampling_params.ignore_eos);
  EXPECT_EQ(adapted.request.sampling_params.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(adapted.request.priority, -2);
}

TEST_F(RequestFieldsTest, EveryFieldIsAParameterAndASamplingParameter) {
  for_each_request_field([](const auto& field, auto part_of) {
    if (field.set_by != SetBy::kClients) return;
    AdaptedRequest plain = adapt(text_request("Once"));
    const auto sample = sample_of(field.range, part_of(plain.request).*field.member);
    part_of(plain.request).*field.member = sample.value;
    const std::string name = field.name;
    AdaptedRequest adapted = adapt(text_request("Once", "{\"" + name + "\": " + sample.json + "}"));
    EXPECT_TRUE(same_fields(adapted.request, plain.request)) << name;
    // A parameter is a string that holds the value, unless the field is a string itself.
    using Value = std::remove_cvref_t<decltype(sample.value)>;
    const bool is_text = sample.json.front() == '"' || std::is_same_v<Value, std::vector<std::string>>;
    if (is_text) return;
    adapted = adapt(with(text_request("Once"), RequestParameter{name, sample.json}));
    EXPECT_TRUE(same_fields(adapted.request, plain.request)) << name;
  });
}

TEST_F(RequestFieldsTest, AnInputWinsOverAParameterOfItsName) {
  const AdaptedRequest adapted = adapt(with(stream_request("Once"), RequestParameter{"stream", false}));
  EXPECT_TRUE(adapted.response.stream);
  EXPECT_EQ(adapt(with(ClientRequest(), RequestParameter{"text_input", std::string("Once")})).request.prompt,
            "Once");
  EXPECT_TRUE(
      mentions(error(with(ClientRequest(), RequestParameter{"text_input", int64_t{1}})), "text_input"));
}

TEST_F(RequestFieldsTest, ParametersThatMeanNothingAreRefused) {
  EXPECT_TRUE(mentions(error(with(text_request("Once"), RequestParameter{"temprature", 0.5})), "temprature"));
  EXPECT_TRUE(
      mentions(error(with(text_request("Once"), RequestParameter{"user", std::string("\xC3")})), "UTF-8"));
  for (const double value :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    EXPECT_TRUE(
        mentions(error(with(text_request("Once"), RequestParameter{"temperature", value})), "temperature"));
  }
}

TEST_F(RequestFieldsTest, BadSamplingParametersAreRefused) {
  for (const char* text :
       {"{", "[]", "1", "{\"user\": \"\xC3\"}", R"({"n": 2147483648})", R"({"lora_name": 1})"}) {
    EXPECT_NE(error(text_request("Once", text)), "") << text;
  }
  EXPECT_EQ(error(with(text_request("Once"), string_input("sampling_parameters", ""))), "");
}

TEST_F(RequestFieldsTest, DeepNestingIsRefused) {
  const std::string deep = std::string(kTooDeep, '[') + std::string(kTooDeep, ']');
  EXPECT_NE(error(text_request("Once", deep)), "");
  EXPECT_NE(error(text_request("Once", "{\"temperature\": " + deep + "}")), "");
  EXPECT_NE(error(text_request("Once", "{\"lora_name\": null, \"temperature\": " + deep + "}")), "");
  EXPECT_NE(error(text_request("Once", "{\"lora_name\": " + deep + "}")), "");
  EXPECT_NE(error(with(text_request("Once"), RequestParameter{"temperature", deep})), "");
}

TEST_F(RequestFieldsTest, TheShorterOfTimeoutAndDeadlineRules) {
  ClientRequest request = text_request("Once");
  request.timeout_us = 1500;
  EXPECT_EQ(adapt(request).request.deadline_ms, 2) << "rounded up";
  EXPECT_EQ(adapt(request).timeout_us, 1500U);
  request = text_request("Once", R"({"deadline_ms": 1})");
  request.timeout_us = 1500;
  EXPECT_EQ(adapt(request).request.deadline_ms, 1);
  EXPECT_EQ(adapt(request).timeout_us, 0U);
  request.timeout_us = UINT64_MAX;
  EXPECT_EQ(adapt(request).request.deadline_ms, 1) << "a timeout of 584,942 years is the longer one";
}

TEST_F(RequestFieldsTest, AQueueTimeoutCountsWhenNothingEndsEarlier) {
  const auto queue_timeout_ms = [](const std::string& sampling, uint64_t timeout_us) {
    ClientRequest request = text_request("Once", sampling);
    request.timeout_us = timeout_us;
    return adapt(request, true, /*queue_timeout_us=*/2500).request.queue_timeout_ms;
  };
  EXPECT_EQ(queue_timeout_ms("", 0), 3);
  EXPECT_EQ(queue_timeout_ms("", 5000), 3);
  EXPECT_EQ(queue_timeout_ms("", 1000), 0);
  EXPECT_EQ(queue_timeout_ms(R"({"deadline_ms": 4})", 0), 3);
  EXPECT_EQ(queue_timeout_ms(R"({"deadline_ms": 3})", 0), 0);
}

}  // namespace
}  // namespace quire::triton::host
