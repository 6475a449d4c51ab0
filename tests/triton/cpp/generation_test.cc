// Requests from one end to the other, with the demo model.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "triton_test.h"

namespace quire::triton::host {
namespace {

class GenerationTest : public HostTest {};

const char kGreedy[] = R"({"temperature": 0, "max_tokens": 12})";

TEST_F(GenerationTest, ARequestWithoutStreamGetsOneResponseWithPromptAndText) {
  const auto model = load_demo();
  const auto call = model->infer(text_request(kStory, kGreedy));
  const auto responses = call->wait();
  ASSERT_EQ(responses.size(), 1U);
  ASSERT_EQ(call->error(), "");
  EXPECT_EQ(call->text().substr(0, sizeof kStory - 1), kStory);
  EXPECT_GT(call->text().size(), sizeof kStory);
  EXPECT_EQ(responses[0].outputs.size(), 1U) << "text_output and nothing else";
  EXPECT_TRUE(call->counted_success());
}

TEST_F(GenerationTest, AStreamsPiecesAreTheTextWithoutThePrompt) {
  const auto model = load_demo();
  // An answer so long that not all of it can wait for a late output thread and become one piece.
  const char params[] = R"({"temperature": 0, "max_tokens": 300, "ignore_eos": true})";
  const auto whole = model->infer(text_request(kStory, params));
  whole->wait();
  const auto stream = model->infer(stream_request(kStory, params));
  EXPECT_GT(stream->wait().size(), 1U);
  EXPECT_EQ(stream->error(), "");
  EXPECT_EQ(kStory + stream->text(), whole->text());
}

TEST_F(GenerationTest, AModelThatIsNotDecoupledGivesTheSameText) {
  const auto decoupled = load_demo()->infer(text_request(kStory, kGreedy));
  decoupled->wait();
  const auto model = host().load("sync", demo_config({}, /*decoupled=*/false));
  const auto call = model->infer(text_request(kStory, kGreedy));
  EXPECT_EQ(call->wait().size(), 1U);
  EXPECT_EQ(call->text(), decoupled->text());
  EXPECT_EQ(model->num_successes(), 1U);
}

TEST_F(GenerationTest, AModelThatIsNotDecoupledRefusesStreams) {
  const auto model = load_demo({}, /*decoupled=*/false);
  const auto call = model->infer(stream_request(kStory));
  EXPECT_EQ(call->wait().size(), 1U);
  EXPECT_EQ(call->error_code(), TRITONSERVER_ERROR_INVALID_ARG);
}

TEST_F(GenerationTest, EveryOutputComesWhenItIsAskedForByName) {
  const auto model = load_demo();
  for (const TensorSpec& spec : output_specs()) {
    ClientRequest request = text_request(kStory, R"({"temperature": 0, "max_tokens": 3, "n": 2})");
    request.outputs = {spec.name};
    const auto call = model->infer(request);
    const auto responses = call->wait();
    ASSERT_EQ(call->error(), "");
    ASSERT_EQ(responses.at(0).outputs.size(), 1U) << spec.name;
    EXPECT_EQ(responses[0].outputs.begin()->first, spec.name);
  }
}

TEST_F(GenerationTest, EveryFlagBringsItsOutputInEveryResponseOfAStream) {
  const auto model = load_demo();
  ClientRequest request = stream_request(kStory, kGreedy);
  for (const char* flag : {"return_finish_reason", "return_cumulative_logprob", "return_logprobs",
                           "return_prompt_logprobs", "return_num_input_tokens", "return_num_output_tokens",
                           "return_output_ids", "return_log_probs", "return_message", "return_usage"}) {
    request.inputs.push_back(bool_input(flag, true));
  }
  const auto call = model->infer(request);
  uint32_t num_tokens = 0;
  for (const ReceivedResponse& response : call->wait()) {
    ASSERT_EQ(response.outputs.size(), output_specs().size()) << response.error;
    num_tokens += numbers<uint32_t>(response.outputs.at("num_output_tokens")).at(0);
  }
  EXPECT_EQ(num_tokens, 12U);
  const auto prompt_logprobs = [&](size_t i) {
    return strings(call->responses().at(i).outputs.at("prompt_logprobs")).at(0);
  };
  EXPECT_TRUE(prompt_logprobs(0).starts_with("[null,{")) << prompt_logprobs(0);
  // What a busy client left waiting comes together, so that there may be one response or twelve.
  for (size_t i = 1; i < call->responses().size(); ++i) EXPECT_EQ(prompt_logprobs(i), "[]") << i;
  EXPECT_EQ(call->ids().size(), 12U);
  EXPECT_EQ(strings(call->responses().back().outputs.at("finish_reason")).at(0), "length");
}

TEST_F(GenerationTest, AConversationStreamsAsDeltasOfItsMessage) {
  const auto model = load_demo({{"tool_parser", "hermes"}});
  ClientRequest request;
  request.inputs = {string_input("messages", R"([{"role": "user", "content": "Who are you?"}])"),
                    string_input("sampling_parameters", kGreedy)};
  const auto whole = model->infer(request);
  whole->wait();
  ASSERT_EQ(whole->error(), "");
  EXPECT_NE(whole->text(), "");
  request.inputs.push_back(bool_input("stream", true));
  request.outputs = {"message"};
  std::string content;
  for (const ReceivedResponse& response : model->infer(request)->wait()) {
    ASSERT_EQ(response.error, "");
    content += nlohmann::json::parse(strings(response.outputs.at("message")).at(0)).value("content", "");
  }
  EXPECT_EQ(content, whole->text());
}

TEST_F(GenerationTest, AConversationThatCannotBeRenderedFailsAlone) {
  const auto model = load_demo();
  ClientRequest request;
  for (const char* messages : {"{}", "[1]", R"([{"role": "user", "content": 5}])"}) {
    request.inputs = {string_input("messages", messages)};
    const auto call = model->infer(request);
    call->wait();
    EXPECT_EQ(call->error_code(), TRITONSERVER_ERROR_INVALID_ARG) << messages;
  }
  const auto call = model->infer(text_request(kStory, kGreedy));
  call->wait();
  EXPECT_EQ(call->error(), "");
}

// [1, 1] for [1], as clients of TensorRT-LLM's models have it.
TEST_F(GenerationTest, ShapesOfAModelWithABatchDimensionHaveIt) {
  std::string config = demo_config();
  config.replace(config.find("\"max_batch_size\":0"), 18, "\"max_batch_size\":1");
  const auto model = host().load("batched", config);
  ClientRequest request = stream_request(kStory, kGreedy);
  for (const char* flag : {"return_finish_reason", "return_log_probs", "return_output_ids"}) {
    request.inputs.push_back(bool_input(flag, true));
  }
  request.inputs.push_back(bool_input("return_message", true));
  for (Input& input : request.inputs) input.shape = {1, 1};
  const auto call = model->infer(request);
  float sum = 0;
  for (const ReceivedResponse& response : call->wait()) {
    ASSERT_EQ(response.error, "");
    EXPECT_EQ(response.outputs.at("text_output").shape, (std::vector<int64_t>{1, 1}));
    EXPECT_EQ(response.outputs.at("message").shape, (std::vector<int64_t>{1, 1}));
    for (const float logprob : numbers<float>(response.outputs.at("output_log_probs"))) sum += logprob;
  }
  EXPECT_LT(sum, 0);
  const auto last = call->responses().back().outputs;
  EXPECT_NEAR(numbers<float>(last.at("cum_log_probs")).at(0), sum, 1e-4);
  ClientRequest named = text_request(kStory, R"({"max_tokens": 2000, "ignore_eos": true})");
  named.id = "mine";
  const auto cancelled = model->infer(named);
  ClientRequest cancel;
  cancel.id = named.id;
  cancel.inputs = {bool_input("cancel", true)};
  EXPECT_EQ(model->infer(cancel)->wait().at(0).outputs.at("finish_reason").shape,
            (std::vector<int64_t>{1, 1}));
  cancelled->wait();
}

TEST_F(GenerationTest, InputsInSeveralBuffersAreJoined) {
  const auto model = load_demo();
  const auto whole = model->infer(text_request(kStory, kGreedy));
  whole->wait();
  ClientRequest request = text_request(kStory, kGreedy);
  for (Input& input : request.inputs) {
    const std::string bytes = input.buffers.at(0);
    input.buffers = {bytes.substr(0, 3), "", bytes.substr(3, 4), bytes.substr(7)};
  }
  const auto parts = model->infer(request);
  parts->wait();
  EXPECT_EQ(parts->text(), whole->text());
}

TEST_F(GenerationTest, AnInputWithoutBuffersIsRefused) {
  ClientRequest request = text_request(kStory);
  request.inputs[0].buffers.clear();
  const auto call = load_demo()->infer(request);
  call->wait();
  EXPECT_EQ(call->error_code(), TRITONSERVER_ERROR_INVALID_ARG);
}

TEST_F(GenerationTest, AnInputInDeviceMemoryIsRefused) {
  ClientRequest request = text_request(kStory);
  request.inputs[0].memory_type = TRITONSERVER_MEMORY_GPU;
  const auto call = load_demo()->infer(request);
  call->wait();
  EXPECT_EQ(call->error_code(), TRITONSERVER_ERROR_INVALID_ARG);
  EXPECT_NE(call->error().find("text_input"), std::string::npos) << call->error();
}

TEST_F(GenerationTest, TokenIdsInGiveTokenIdsOut) {
  ClientRequest request;
  request.inputs = {ids_input({5, 6, 7}), string_input("sampling_parameters", kGreedy)};
  const auto call = load_demo()->infer(request);
  const auto responses = call->wait();
  ASSERT_EQ(call->error(), "");
  EXPECT_EQ(call->ids().size(), 12U);
  EXPECT_TRUE(responses[0].outputs.contains("text_output"));
}

TEST_F(GenerationTest, WithoutATokenizerThereAreOnlyIds) {
  const auto model = load_demo({{"skip_tokenizer_init", "true"}});
  ClientRequest request;
  request.inputs = {ids_input({5, 6, 7}), string_input("sampling_parameters", kGreedy)};
  const auto ids = model->infer(request);
  ids->wait();
  EXPECT_EQ(ids->error(), "");
  EXPECT_EQ(ids->ids().size(), 12U);
  const auto text = model->infer(text_request(kStory));
  text->wait();
  EXPECT_EQ(text->error_code(), TRITONSERVER_ERROR_INVALID_ARG);
  request.inputs.push_back(bool_input("exclude_input_in_output", false));
  const auto prepended = model->infer(request);
  prepended->wait();
  EXPECT_EQ(prepended->error_code(), TRITONSERVER_ERROR_INVALID_ARG);
}

TEST_F(GenerationTest, ABadRequestOfABatchFailsAlone) {
  const auto model = load_demo();
  const auto calls = model->infer_batch(
      {text_request(kStory, kGreedy), text_request(kStory, R"({"temperature": -1})"), text_request(""),
       text_request(kStory, R"({"logit_bias": {"999999": 1}})"), text_request(kStory, kGreedy)});
  for (const auto& call : calls) call->wait();
  EXPECT_EQ(calls[0]->error(), "");
  for (int i : {1, 2, 3}) EXPECT_EQ(calls[i]->error_code(), TRITONSERVER_ERROR_INVALID_ARG) << i;
  EXPECT_EQ(calls[4]->text(), calls[0]->text());
  EXPECT_EQ(model->num_successes(), 2U);
  EXPECT_EQ(model->num_failures(), 0U) << "the clients' errors are not the backend's failures";
}

TEST_F(GenerationTest, ATimeoutThatPassesIsUnavailable) {
  const auto model = load_demo();
  ClientRequest request = stream_request(kStory, R"({"max_tokens": 2000, "ignore_eos": true})");
  request.timeout_us = 30'000;
  const auto call = model->infer(request);
  call->wait();
  EXPECT_EQ(call->error_code(), TRITONSERVER_ERROR_UNAVAILABLE);
  EXPECT_NE(call->error().find("30000"), std::string::npos) << call->error();
  EXPECT_FALSE(call->counted_success());
}

TEST_F(GenerationTest, ADeadlineOfItsOwnEndsWithWhatThereIs) {
  const auto model = load_demo();
  ClientRequest request =
      text_request(kStory, R"({"max_tokens": 2000, "ignore_eos": true, "deadline_ms": 30})");
  request.inputs.push_back(bool_input("return_finish_reason", true));
  const auto call = model->infer(request);
  const auto responses = call->wait();
  ASSERT_EQ(call->error(), "");
  EXPECT_EQ(strings(responses[0].outputs.at("finish_reason")).at(0), "abort");
}

TEST_F(GenerationTest, ARequestIdThatIsInUseIsRefusedUntilTheFirstHasEnded) {
  const auto model = load_demo();
  ClientRequest request = stream_request(kStory, R"({"max_tokens": 2000, "ignore_eos": true})");
  request.inputs.push_back(string_input("request_id", "mine"));
  const auto first = model->infer(request);
  const auto second = model->infer(request);
  second->wait();
  EXPECT_EQ(second->error_code(), TRITONSERVER_ERROR_INVALID_ARG);
  first->cancel();
  first->wait();
  const auto third = model->infer(request);
  third->wait_for_responses(1);
  EXPECT_EQ(third->error(), "");
  third->cancel();
  third->wait();
}

TEST_F(GenerationTest, AFullQueueRefusesWithUnavailable) {
  const auto model = load_demo({{"max_queued_requests", "2"}});
  const auto request = stream_request(kStory, R"({"max_tokens": 2000, "ignore_eos": true})");
  const auto calls = model->infer_batch({request, request, request});
  calls[2]->wait();
  EXPECT_EQ(calls[2]->error_code(), TRITONSERVER_ERROR_UNAVAILABLE);
  EXPECT_EQ(model->num_failures(), 1U);
  for (int i : {0, 1}) calls[i]->cancel();
  for (int i : {0, 1}) calls[i]->wait();
}

TEST_F(GenerationTest, AClientsMemoryThatIsTooSmallGetsAnErrorAtAnyResponse) {
  const auto model = load_demo();
  for (int refused_from : {0, 1, 4}) {
    ClientRequest request = stream_request(kStory, R"({"max_tokens": 2000, "ignore_eos": true})");
    request.refused_from = refused_from;
    const auto call = model->infer(request);
    const auto responses = call->wait();
    ASSERT_EQ(responses.size(), static_cast<size_t>(refused_from) + 1);
    EXPECT_EQ(call->error_code(), TRITONSERVER_ERROR_INVALID_ARG);
    EXPECT_NE(call->error().find("shared memory"), std::string::npos);
  }
  for (const bool decoupled : {true, false}) {
    const auto other = host().load("other", demo_config({}, decoupled));
    ClientRequest request = text_request(kStory, kGreedy);
    request.refused_from = 0;  // the last response is the only one
    const auto call = other->infer(request);
    EXPECT_EQ(call->wait().size(), 1U);
    EXPECT_EQ(call->error_code(), TRITONSERVER_ERROR_INVALID_ARG);
    other->unload();
  }
}

TEST_F(GenerationTest, EveryChunkOfAStreamIsWholeUtf8) {
  const auto model = load_demo();
  // The bytes of two characters, forced to come in any number of tokens.
  const auto call = model->infer(stream_request("\xF0\x9F\x98\x80 \xE5\xAD\x97", R"({"temperature": 5.0,
      "max_tokens": 60, "ignore_eos": true, "seed": 3, "skip_special_tokens": false})"));
  for (const ReceivedResponse& response : call->wait()) {
    const std::string text = strings(response.outputs.at("text_output")).at(0);
    for (size_t i = 0; i < text.size();) {
      const auto byte = static_cast<unsigned char>(text[i]);
      const size_t length = byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
      ASSERT_TRUE(byte < 0x80 || byte >= 0xC2) << "a character begins in the middle";
      ASSERT_LE(i + length, text.size()) << "a character ends in the middle";
      i += length;
    }
  }
}

TEST_F(GenerationTest, MetricsCountWhatIsGenerated) {
  const auto model = load_demo();
  const std::map<std::string, std::string> labels = {{"model", "demo"}, {"version", "1"}};
  for (int i = 0; i < 3; ++i) model->infer(text_request(kStory, kGreedy))->wait();
  EXPECT_EQ(host().metric("quire:generation_tokens_total", labels), 36);
  EXPECT_EQ(host().metric("quire:time_to_first_token_seconds", labels), 3);
  EXPECT_EQ(host().metric("quire:request_success_total", {{"finished_reason", "length"}}), 3);
  model->unload();
  EXPECT_EQ(Ledger::instance().num_alive("metric"), 0U);
}

}  // namespace
}  // namespace quire::triton::host
