// Requests as plain data: no server.
#include "request_adapter.h"

#include <limits>

#include "engine/field_samples.h"
#include "host/host.h"
#include "triton_test.h"
#include "util/sanitized.h"

namespace quire::triton::host {
namespace {

AdaptedRequest adapt(const ClientRequest& request, bool decoupled = true, uint64_t queue_timeout_us = 0) {
  IncomingRequest incoming;
  incoming.id = request.id;
  for (const Input& input : request.inputs) {
    incoming.inputs.push_back({input.name, input.datatype, input.shape, input.buffers.at(0)});
  }
  incoming.parameters = request.parameters;
  incoming.outputs = request.outputs;
  incoming.timeout_us = request.timeout_us;
  ModelSettings model;
  model.decoupled = decoupled;
  model.queue_timeout_us = queue_timeout_us;
  model.num_outputs = output_specs().size();
  return adapt_request(incoming, model);
}

std::string error(const ClientRequest& request, bool decoupled = true) {
  try {
    adapt(request, decoupled);
    return "";
  } catch (const InvalidArgument& complaint) {
    return complaint.what();
  }
}

ClientRequest with(ClientRequest request, Input input) {
  request.inputs.push_back(std::move(input));
  return request;
}
ClientRequest with(ClientRequest request, RequestParameter parameter) {
  request.parameters.push_back(std::move(parameter));
  return request;
}
ClientRequest with_outputs(ClientRequest request, std::vector<std::string> outputs) {
  request.outputs = std::move(outputs);
  return request;
}

bool mentions(const std::string& text, const std::string& needle) {
  return text.find(needle) != std::string::npos;
}

TEST(RequestAdapterTest, ATextPromptAloneSufficesAndComesBackBeforeTheOutput) {
  const AdaptedRequest adapted = adapt(text_request("Once"));
  EXPECT_EQ(adapted.request.prompt, "Once");
  EXPECT_EQ(adapted.request.request_id, "");
  EXPECT_EQ(adapted.request.sampling_params.output_kind, RequestOutputKind::kFinalOnly);
  EXPECT_TRUE(adapted.response.prepend_input);
  EXPECT_TRUE(adapted.response.text_output);
  EXPECT_FALSE(adapted.response.output_ids);
  EXPECT_FALSE(adapted.unique_id);
  EXPECT_FALSE(adapted.cancel);
}

TEST(RequestAdapterTest, AStreamIsOfDeltasWithoutThePrompt) {
  const AdaptedRequest adapted = adapt(stream_request("Once"));
  EXPECT_TRUE(adapted.response.stream);
  EXPECT_FALSE(adapted.response.prepend_input);
  EXPECT_EQ(adapted.request.sampling_params.output_kind, RequestOutputKind::kDelta);
  EXPECT_TRUE(mentions(error(stream_request("Once"), /*decoupled=*/false), "decoupled"));
  EXPECT_TRUE(mentions(error(with(stream_request("Once"), bool_input("exclude_input_in_output", false))),
                       "exclude_input_in_output"));
  EXPECT_EQ(error(with(stream_request("Once"), bool_input("exclude_input_in_output", true))), "");
}

TEST(RequestAdapterTest, TokenIdsAreTakenAsTheyAreAndComeBackAsIds) {
  ClientRequest request;
  request.inputs = {ids_input({3, -1, 7})};
  const AdaptedRequest adapted = adapt(request);
  EXPECT_EQ(adapted.request.prompt_token_ids, (std::vector<int32_t>{3, -1, 7}));
  EXPECT_TRUE(adapted.response.output_ids);
  EXPECT_TRUE(adapted.response.text_output);
  EXPECT_FALSE(adapted.response.prepend_input);
  EXPECT_TRUE(adapt(with(request, bool_input("exclude_input_in_output", false))).response.prepend_input);
}

TEST(RequestAdapterTest, ExactlyOnePromptIsNeeded) {
  EXPECT_TRUE(mentions(error({}), "text_input is missing"));
  EXPECT_TRUE(mentions(error(with(text_request("Once"), ids_input({1}))), "not both"));
  EXPECT_TRUE(mentions(error(text_request("")), "text_input is empty"));
  ClientRequest no_ids;
  no_ids.inputs = {ids_input({})};
  EXPECT_TRUE(mentions(error(no_ids), "input_ids"));
  EXPECT_TRUE(mentions(error(with(text_request("Once"), RequestParameter{"input_ids", std::string("[1]")})),
                       "input_ids"));
}

TEST(RequestAdapterTest, EveryInputMustBeKnownAndOfItsTypeAndSize) {
  for (const TensorSpec& spec : input_specs()) {
    ClientRequest request;
    request.inputs = {{spec.name, TRITONSERVER_TYPE_FP16, {1}, {"ab"}}};
    if (std::string(spec.name) == "request_id") request.inputs.push_back(string_input("text_input", "Once"));
    if (std::string(spec.name) != "text_input" && std::string(spec.name) != "input_ids") {
      request.inputs.push_back(string_input("text_input", "Once"));
    }
    EXPECT_TRUE(mentions(error(request), std::string("'") + spec.name + "' must be ")) << spec.name;
  }
  EXPECT_TRUE(mentions(error(with(text_request("Once"), string_input("prompt", "x"))), "'prompt'"));
  EXPECT_TRUE(mentions(
      error(with(text_request("Once"), Input{"stream", TRITONSERVER_TYPE_BOOL, {2}, {"\1\1"}})), "[2]"));
  EXPECT_TRUE(mentions(error(with(text_request("Once"), Input{"stream", TRITONSERVER_TYPE_BOOL, {1}, {""}})),
                       "one byte"));
}

TEST(RequestAdapterTest, AStringsLengthMustBeThatOfItsBytes) {
  for (const std::string& bytes : {std::string(), std::string("abc"), string_bytes("abc") + "d",
                                   std::string("\xFF\xFF\xFF\xFF", 4), string_bytes("abc").substr(0, 6)}) {
    ClientRequest request;
    request.inputs = {{"text_input", TRITONSERVER_TYPE_BYTES, {1}, {bytes}}};
    EXPECT_TRUE(mentions(error(request), "text_input")) << bytes.size();
  }
  ClientRequest two;
  two.inputs = {{"text_input", TRITONSERVER_TYPE_BYTES, {2}, {string_bytes("a") + string_bytes("b")}}};
  EXPECT_TRUE(mentions(error(two), "one element"));
  ClientRequest scalar;
  scalar.inputs = {{"text_input", TRITONSERVER_TYPE_BYTES, {1, 1}, {string_bytes("a")}}};
  EXPECT_EQ(adapt(scalar).request.prompt, "a");
}

TEST(RequestAdapterTest, EveryFlagBringsItsOutput) {
  const std::vector<std::pair<const char*, bool ResponseOptions::*>> flags = {
      {"return_finish_reason", &ResponseOptions::finish_reason},
      {"return_cumulative_logprob", &ResponseOptions::cumulative_logprob},
      {"return_logprobs", &ResponseOptions::logprobs},
      {"return_num_input_tokens", &ResponseOptions::num_input_tokens},
      {"return_num_output_tokens", &ResponseOptions::num_output_tokens},
      {"return_output_ids", &ResponseOptions::output_ids},
      {"return_message", &ResponseOptions::message},

      {"return_usage", &ResponseOptions::usage}};
  for (const auto& [name, option] : flags) {
    EXPECT_FALSE(adapt(text_request("Once")).response.*option) << name;
    EXPECT_TRUE(adapt(with(text_request("Once"), bool_input(name, true))).response.*option) << name;
    EXPECT_FALSE(adapt(with(text_request("Once"), bool_input(name, false))).response.*option) << name;
    EXPECT_TRUE(adapt(with(text_request("Once"), RequestParameter{name, true})).response.*option) << name;
    EXPECT_TRUE(mentions(error(with(text_request("Once"), RequestParameter{name, int64_t{1}})), name));
  }
}

TEST(RequestAdapterTest, AListOfOutputsIsMeantUnlessItIsAllOfThem) {
  const ResponseOptions some = adapt(with_outputs(text_request("Once"), {"output_ids", "logprobs"})).response;
  EXPECT_FALSE(some.text_output);
  EXPECT_TRUE(some.output_ids);
  EXPECT_TRUE(some.logprobs);
  EXPECT_FALSE(some.finish_reason);
  std::vector<std::string> all;
  for (const TensorSpec& spec : output_specs()) all.emplace_back(spec.name);
  const ResponseOptions listed = adapt(with_outputs(text_request("Once"), all)).response;
  EXPECT_TRUE(listed.text_output);
  EXPECT_FALSE(listed.output_ids);
  EXPECT_TRUE(mentions(error(with_outputs(text_request("Once"), {"text"})), "'text'"));
}

TEST(RequestAdapterTest, AConversationIsLeftToBeRendered) {
  ClientRequest request;
  request.inputs = {string_input("messages", "[1]"), string_input("tools", "[2]")};
  request.parameters = {{"tool_choice", std::string("auto")}, {"continue_final_message", true}};
  request =
      with(request, string_input("sampling_parameters", R"({"chat_template_kwargs": {"b": [{}], "a": 1}})"));
  const AdaptedRequest adapted = adapt(request);
  EXPECT_TRUE(adapted.is_chat());
  EXPECT_EQ(adapted.request.prompt, "");
  EXPECT_EQ(adapted.chat.messages.text, "[1]");
  EXPECT_EQ(adapted.chat.tools.text, "[2]");
  EXPECT_EQ(adapted.chat.tool_choice.text, "auto");
  EXPECT_EQ(adapted.chat.chat_template_kwargs.text, R"({"b": [{}], "a": 1})");
  EXPECT_TRUE(adapted.chat.continue_final_message);
  EXPECT_FALSE(adapted.response.prepend_input) << "which is not what the client has sent";
  EXPECT_FALSE(adapt(text_request("Once")).is_chat());
  EXPECT_TRUE(adapt(with(text_request("Once"), bool_input("return_message", true))).is_chat());
}

TEST(RequestAdapterTest, APromptIsGivenInOneForm) {
  const Input messages = string_input("messages", "[]");
  EXPECT_TRUE(mentions(error(with(text_request("Once"), messages)), "give messages or text_input, not both"));
  ClientRequest ids;
  ids.inputs = {messages, ids_input({1})};
  EXPECT_TRUE(mentions(error(ids), "give messages or input_ids, not both"));
  ClientRequest empty;
  empty.inputs = {string_input("messages", "")};
  EXPECT_TRUE(mentions(error(empty), "messages is empty"));
  EXPECT_TRUE(mentions(error({}), "or messages"));
}

TEST(RequestAdapterTest, AMessageIsReadFromText) {
  const ClientRequest request = with_outputs(text_request("Once"), {"message"});
  EXPECT_TRUE(adapt(request).request.sampling_params.detokenize);
  EXPECT_TRUE(adapt(request).response.only_messages());
  EXPECT_TRUE(mentions(error(with(request, RequestParameter{"detokenize", false})), "detokenize"));
  EXPECT_FALSE(adapt(with_outputs(text_request("Once"), {"message", "output_ids"})).response.only_messages());
}

// What lora_name stands beside keeps its depth and its order.
TEST(RequestAdapterTest, AnAdaptersNameMayStandBesideAnything) {
  const AdaptedRequest adapted = adapt(
      text_request("Once", R"({"lora_name": "", "structured_outputs": {"json": {"z": {"a": []}, "b": 1}}})"));
  EXPECT_EQ(adapted.request.sampling_params.structured_outputs.value().json.value().text,
            R"({"z": {"a": []}, "b": 1})");
}

TEST(RequestAdapterTest, AFlagAddsToTheOutputsThatAreListed) {
  const ResponseOptions options = adapt(with(with_outputs(text_request("Once"), {"text_output"}),
                                             bool_input("return_finish_reason", true)))
                                      .response;
  EXPECT_TRUE(options.text_output);
  EXPECT_TRUE(options.finish_reason);
}

TEST(RequestAdapterTest, AnErrorIsShortWhateverTheClientNamed) {
  const std::string name(3'000'000, 'x');
  const std::string shown = "'" + std::string(100, 'x') + "...'";
  for (const std::string& message :
       {error(with_outputs(text_request("Once"), {name})),
        error(with(text_request("Once"), bool_input(name, true))),
        error(with(text_request("Once"), RequestParameter{name, std::string("\xFF")})),
        error(with(text_request("Once", R"({"lora_name": "mine"})"), string_input("lora_name", name)))}) {
    EXPECT_LT(message.size(), 300U);
    EXPECT_TRUE(mentions(message, shown)) << message.substr(0, 300);
  }
}

TEST(RequestAdapterTest, WhatIsReturnedIsComputed) {
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

TEST(RequestAdapterTest, ParametersAreFieldsAndSamplingParametersWin) {
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

TEST(RequestAdapterTest, EveryFieldIsAParameterAndASamplingParameter) {
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

TEST(RequestAdapterTest, AnInputWinsOverAParameterOfItsName) {
  const AdaptedRequest adapted = adapt(with(stream_request("Once"), RequestParameter{"stream", false}));
  EXPECT_TRUE(adapted.response.stream);
  EXPECT_EQ(adapt(with(ClientRequest(), RequestParameter{"text_input", std::string("Once")})).request.prompt,
            "Once");
  EXPECT_TRUE(
      mentions(error(with(ClientRequest(), RequestParameter{"text_input", int64_t{1}})), "text_input"));
}

TEST(RequestAdapterTest, ParametersThatMeanNothingAreRefused) {
  EXPECT_TRUE(mentions(error(with(text_request("Once"), RequestParameter{"temprature", 0.5})), "temprature"));
  EXPECT_TRUE(
      mentions(error(with(text_request("Once"), RequestParameter{"user", std::string("\xC3")})), "UTF-8"));
  for (const double value :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    EXPECT_TRUE(
        mentions(error(with(text_request("Once"), RequestParameter{"temperature", value})), "temperature"));
  }
}

TEST(RequestAdapterTest, BadSamplingParametersAreRefused) {
  for (const char* text :
       {"{", "[]", "1", "{\"user\": \"\xC3\"}", R"({"n": 2147483648})", R"({"lora_name": 1})"}) {
    EXPECT_NE(error(text_request("Once", text)), "") << text;
  }
  EXPECT_EQ(error(with(text_request("Once"), string_input("sampling_parameters", ""))), "");
}

TEST(RequestAdapterTest, DeepNestingIsRefused) {
  const std::string deep = std::string(kTooDeep, '[') + std::string(kTooDeep, ']');
  EXPECT_NE(error(text_request("Once", deep)), "");
  EXPECT_NE(error(text_request("Once", "{\"temperature\": " + deep + "}")), "");
  EXPECT_NE(error(text_request("Once", "{\"lora_name\": null, \"temperature\": " + deep + "}")), "");
  EXPECT_NE(error(text_request("Once", "{\"lora_name\": " + deep + "}")), "");
  EXPECT_NE(error(with(text_request("Once"), RequestParameter{"temperature", deep})), "");
}

template <typename T>
Input number_input(const std::string& name, TRITONSERVER_DataType datatype, T value) {
  return {name, datatype, {1, 1}, {std::string(reinterpret_cast<const char*>(&value), sizeof value)}};
}

TEST(RequestAdapterTest, TheInputsOfTensorRTLLMAreFields) {
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
TEST(RequestAdapterTest, TheFieldsOfTensorRTLLMMayBeParameters) {
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

TEST(RequestAdapterTest, WhatTensorRTLLMCanAndThisVersionCannotIsRefused) {
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

TEST(RequestAdapterTest, StopWordsAndTheEndAreCheckedByTheirNames) {
  EXPECT_TRUE(mentions(error(with(text_request("Once"), string_input("stop_words", "\xFF"))), "stop_words"));
  EXPECT_TRUE(mentions(error(with(text_request("Once"), string_input("bad_words", "\xFF"))), "bad_words"));
  const auto named = adapt(with(text_request("Once"), RequestParameter{"bad_words", std::string("damn")}));
  EXPECT_EQ(named.request.sampling_params.bad_words, std::vector<std::string>{"damn"});
  EXPECT_TRUE(mentions(error(with(text_request("Once"), number_input("end_id", TRITONSERVER_TYPE_INT32, -1))),
                       "end_id must be at least 0, got -1"));
}

TEST(RequestAdapterTest, AnAdapterIsNamedInOnePlaceOrAlikeInSeveral) {
  const char* json = R"({"lora_name": "mine", "max_tokens": 5})";
  const RequestParameter parameter{"lora_name", std::string("mine")};
  const Input input = string_input("lora_name", "mine");
  for (const ClientRequest& request :
       {text_request("Once", json), with(text_request("Once"), parameter), with(text_request("Once"), input),
        with(with(text_request("Once", json), parameter), input),
        with(text_request("Once", json), string_input("lora_name", "")),
        with(text_request("Once", R"({"lora_name": null})"), input)}) {
    EXPECT_EQ(adapt(request).request.lora_name, "mine");
  }
  EXPECT_EQ(adapt(text_request("Once", R"({"lora_name": null})")).request.lora_name, "");
  EXPECT_EQ(adapt(text_request("Once", R"({"lora_name": ""})")).request.lora_name, "");
  EXPECT_EQ(error(with(with(text_request("Once", R"({"lora_name": "b"})"), parameter),
                       string_input("lora_name", "b"))),
            "lora_name is 'b' in the input, but 'mine' in the parameter; give it once");
  EXPECT_EQ(error(with(text_request("Once", json), string_input("lora_name", "Mine"))),
            "lora_name is 'Mine' in the input, but 'mine' in sampling_parameters; give it once");
  EXPECT_TRUE(mentions(error(with(text_request("Once"), string_input("lora_name", "\xFF"))), "UTF-8"));
  EXPECT_TRUE(mentions(error(with(text_request("Once"), RequestParameter{"lora_name", true})), "lora_name"));
}

AdaptedRequest adapt_control(std::vector<RequestParameter> parameters, std::vector<Input> inputs = {}) {
  IncomingRequest incoming;
  for (const Input& input : inputs)
    incoming.inputs.push_back({input.name, input.datatype, input.shape, input.buffers.at(0)});
  incoming.parameters = std::move(parameters);
  ModelSettings model;
  model.lora_control = true;
  return adapt_request(incoming, model);
}

std::string control_error(std::vector<RequestParameter> parameters, std::vector<Input> inputs = {}) {
  try {
    adapt_control(std::move(parameters), std::move(inputs));
    return "";
  } catch (const InvalidArgument& complaint) {
    return complaint.what();
  }
}

TEST(RequestAdapterTest, AdaptersAreLoadedUnloadedAndListedWithoutAPrompt) {
  using Action = LoraControl::Action;
  const RequestParameter name{"lora_name", std::string("mine")};
  const RequestParameter path{"lora_path", std::string("a/b")};
  const AdaptedRequest load = adapt_control({{"load_lora", true}, name, path, {"unload_lora", false}});
  EXPECT_EQ(load.lora_control.action, Action::kLoad);
  EXPECT_EQ(load.lora_control.lora_name, "mine");
  EXPECT_EQ(load.lora_control.lora_path, "a/b");
  EXPECT_FALSE(load.lora_control.load_inplace);
  EXPECT_TRUE(
      adapt_control({{"load_lora", true}, name, path, {"load_inplace", true}}).lora_control.load_inplace);
  const AdaptedRequest unload = adapt_control({{"unload_lora", true}}, {string_input("lora_name", "mine")});
  EXPECT_EQ(unload.lora_control.action, Action::kUnload);
  EXPECT_EQ(unload.lora_control.lora_name, "mine");
  EXPECT_EQ(adapt_control({{"list_loras", true}, {"x-header", std::string("y")}}).lora_control.action,
            Action::kList);
  const AdaptedRequest plain = adapt_control({{"load_lora", false}}, {string_input("text_input", "Once")});
  EXPECT_EQ(plain.lora_control.action, Action::kNone);
  EXPECT_EQ(plain.request.prompt, "Once");
}

TEST(RequestAdapterTest, ABadControlRequestIsRefused) {
  const RequestParameter name{"lora_name", std::string("mine")};
  const RequestParameter path{"lora_path", std::string("a/b")};
  EXPECT_TRUE(mentions(control_error({{"load_lora", true}, path}), "needs lora_name"));
  EXPECT_TRUE(mentions(control_error({{"load_lora", true}, name}), "needs lora_path"));
  EXPECT_TRUE(mentions(control_error({{"unload_lora", true}}), "needs lora_name"));
  EXPECT_TRUE(mentions(control_error({{"unload_lora", true}, name, path}), "'lora_path'"));
  EXPECT_TRUE(mentions(control_error({{"unload_lora", true}, name, {"list_loras", true}}), "not both"));
  EXPECT_TRUE(
      mentions(control_error({{"list_loras", true}}, {string_input("text_input", "x")}), "'text_input'"));
  EXPECT_TRUE(mentions(control_error({{"list_loras", true}, {"max_tokens", int64_t{1}}}), "'max_tokens'"));
  EXPECT_TRUE(mentions(control_error({{"list_loras", std::string("true")}}), "true or false"));
  EXPECT_TRUE(
      mentions(control_error({path}, {string_input("text_input", "x")}), "lora_path goes with load_lora"));
  EXPECT_TRUE(
      mentions(control_error({{"load_lora", true}, path, {"lora_name", std::string("\xFF")}}), "UTF-8"));
  EXPECT_TRUE(
      mentions(control_error({{"load_lora", true}, name, {"lora_path", std::string("\xFF")}}), "UTF-8"));
  ClientRequest request;
  request.parameters = {{"list_loras", true}};
  EXPECT_TRUE(mentions(error(request), "enable_lora_control")) << "not of any model";
}

TEST(RequestAdapterTest, AnIdIsUniqueOnlyWhenItIsAnInput) {
  ClientRequest request = text_request("Once");
  request.id = "client";
  EXPECT_EQ(adapt(request).request_id, "client");
  EXPECT_FALSE(adapt(request).unique_id);
  const AdaptedRequest named = adapt(with(request, string_input("request_id", "mine")));
  EXPECT_EQ(named.request_id, "mine");
  EXPECT_TRUE(named.unique_id);
  EXPECT_FALSE(adapt(with(request, string_input("request_id", ""))).unique_id);
}

TEST(RequestAdapterTest, ACancelNeedsAnIdAndNothingElse) {
  ClientRequest request;
  request.inputs = {bool_input("cancel", true)};
  EXPECT_TRUE(mentions(error(request), "request_id"));
  request.id = "client";
  EXPECT_TRUE(adapt(request).cancel);
  EXPECT_EQ(adapt(request).request_id, "client");
  EXPECT_FALSE(adapt(with(text_request("Once"), bool_input("cancel", false))).cancel);
}

TEST(RequestAdapterTest, TheShorterOfTimeoutAndDeadlineRules) {
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

TEST(RequestAdapterTest, AQueueTimeoutCountsWhenNothingEndsEarlier) {
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
