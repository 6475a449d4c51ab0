// Requests of TensorRT-LLM's clients.
#include <limits>

#include "request_adapter_fixture.h"

namespace quire::triton::host {
namespace {

class RequestTrtllmTest : public RequestAdapterFixture {
 protected:
  template <typename T>
  static Input number_input(const std::string& name, TRITONSERVER_DataType datatype, T value) {
    return {name, datatype, {1, 1}, {std::string(reinterpret_cast<const char*>(&value), sizeof value)}};
  }
};

TEST_F(RequestTrtllmTest, TheInputsOfTensorRTLLMAreFields) {
  ClientRequest request = text_request("Once");
  request.inputs.push_back(number_input("max_tokens", TRITONSERVER_TYPE_INT32, 20));
  request.inputs.push_back(number_input("min_length", TRITONSERVER_TYPE_INT32, 2));
  request.inputs.push_back(number_input("temperature", TRITONSERVER_TYPE_FP32, 0.7F));
  request.inputs.push_back(number_input("top_k", TRITONSERVER_TYPE_INT32, 5));
  request.inputs.push_back(number_input("top_p", TRITONSERVER_TYPE_FP32, 0.9F));
  request.inputs.push_back(number_input("seed", TRITONSERVER_TYPE_UINT64, uint64_t{1} << 40));
  request.inputs.push_back(number_input("end_id", TRITONSERVER_TYPE_INT32, 2));
  request.inputs.push_back(number_input("pad_id", TRITONSERVER_TYPE_INT32, 2));
  request.inputs.push_back(number_input("beam_width", TRITONSERVER_TYPE_INT32, 3));
  request.inputs.push_back({"stop_words",
                            TRITONSERVER_TYPE_BYTES,
                            {1, 3},
                            {string_bytes("a") + string_bytes("") + string_bytes("b")}});
  request.inputs.push_back(
      {"bad_words", TRITONSERVER_TYPE_BYTES, {1, 2}, {string_bytes("") + string_bytes("c")}});
  request.inputs.push_back(bool_input("return_log_probs", true));
  const AdaptedRequest adapted = adapt(request);
  const SamplingParams& params = adapted.request.sampling_params;
  EXPECT_EQ(params.max_tokens, 20);
  EXPECT_EQ(params.min_tokens, 2);
  EXPECT_EQ(params.temperature, 0.7F);
  EXPECT_EQ(params.top_k, 5);
  EXPECT_EQ(params.top_p, 0.9F);
  EXPECT_EQ(params.seed, uint64_t{1} << 40);
  EXPECT_EQ(params.beam_width, 3);
  EXPECT_EQ(params.stop_token_ids, std::vector<int32_t>{2});
  EXPECT_EQ(params.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(params.bad_words, std::vector<std::string>{"c"});
  EXPECT_EQ(params.logprobs, 0);
  EXPECT_TRUE(adapted.response.cum_log_probs && adapted.response.output_log_probs);
  EXPECT_FALSE(adapted.response.logprobs || adapted.response.cumulative_logprob);
}

// TensorRT-LLM's quick start sends scalars, of which /generate makes parameters.
TEST_F(RequestTrtllmTest, TheFieldsOfTensorRTLLMMayBeParameters) {
  ClientRequest request = text_request("Once");
  request.parameters = {
      {"max_tokens", int64_t{20}}, {"bad_words", std::string()}, {"stop_words", std::string("end")},
      {"random_seed", int64_t{3}}, {"pad_id", int64_t{2}},       {"end_id", int64_t{2}}};
  const SamplingParams params = adapt(request).request.sampling_params;
  EXPECT_EQ(params.max_tokens, 20);
  EXPECT_EQ(params.seed, 3);
  EXPECT_EQ(params.stop, std::vector<std::string>{"end"});
  EXPECT_EQ(params.stop_token_ids, std::vector<int32_t>{2});
}

TEST_F(RequestTrtllmTest, WhatTensorRTLLMCanAndThisVersionCannotIsRefused) {
  EXPECT_TRUE(
      mentions(error(with(text_request("Once"), number_input("temperature", TRITONSERVER_TYPE_FP32,
                                                             std::numeric_limits<float>::infinity()))),
               "'temperature' must be finite"));
  EXPECT_TRUE(
      mentions(error(with(text_request("Once"),
                          Input{"stop_words", TRITONSERVER_TYPE_BYTES, {2}, {string_bytes("a") + "x"}})),
               "'stop_words'"));
  EXPECT_TRUE(
      mentions(error(with(text_request("Once"), RequestParameter{"pad_id", std::string("\xFF")})), "pad_id"));
}

TEST_F(RequestTrtllmTest, StopWordsAndTheEndAreCheckedByTheirNames) {
  EXPECT_TRUE(mentions(error(with(text_request("Once"), string_input("stop_words", "\xFF"))), "stop_words"));
  EXPECT_TRUE(mentions(error(with(text_request("Once"), string_input("bad_words", "\xFF"))), "bad_words"));
  const auto named = adapt(with(text_request("Once"), RequestParameter{"bad_words", std::string("damn")}));
  EXPECT_EQ(named.request.sampling_params.bad_words, std::vector<std::string>{"damn"});
  EXPECT_TRUE(mentions(error(with(text_request("Once"), number_input("end_id", TRITONSERVER_TYPE_INT32, -1))),
                       "end_id must be at least 0, got -1"));
}

}  // namespace
}  // namespace quire::triton::host
