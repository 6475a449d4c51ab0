// Prompts, and what a request wants back.
#include "request_adapter_fixture.h"

namespace quire::triton::host {
namespace {

class RequestAdapterTest : public RequestAdapterFixture {};

TEST_F(RequestAdapterTest, ATextPromptAloneSufficesAndComesBackBeforeTheOutput) {
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

TEST_F(RequestAdapterTest, AStreamIsOfDeltasWithoutThePrompt) {
  const AdaptedRequest adapted = adapt(stream_request("Once"));
  EXPECT_TRUE(adapted.response.stream);
  EXPECT_FALSE(adapted.response.prepend_input);
  EXPECT_EQ(adapted.request.sampling_params.output_kind, RequestOutputKind::kDelta);
  EXPECT_TRUE(mentions(error(stream_request("Once"), /*decoupled=*/false), "decoupled"));
  EXPECT_TRUE(mentions(error(with(stream_request("Once"), bool_input("exclude_input_in_output", false))),
                       "exclude_input_in_output"));
  EXPECT_EQ(error(with(stream_request("Once"), bool_input("exclude_input_in_output", true))), "");
}

TEST_F(RequestAdapterTest, TokenIdsAreTakenAsTheyAreAndComeBackAsIds) {
  ClientRequest request;
  request.inputs = {ids_input({3, -1, 7})};
  const AdaptedRequest adapted = adapt(request);
  EXPECT_EQ(adapted.request.prompt_token_ids, (std::vector<int32_t>{3, -1, 7}));
  EXPECT_TRUE(adapted.response.output_ids);
  EXPECT_TRUE(adapted.response.text_output);
  EXPECT_FALSE(adapted.response.prepend_input);
  EXPECT_TRUE(adapt(with(request, bool_input("exclude_input_in_output", false))).response.prepend_input);
}

TEST_F(RequestAdapterTest, ExactlyOnePromptIsNeeded) {
  EXPECT_TRUE(mentions(error({}), "text_input is missing"));
  EXPECT_TRUE(mentions(error(with(text_request("Once"), ids_input({1}))), "not both"));
  EXPECT_TRUE(mentions(error(text_request("")), "text_input is empty"));
  ClientRequest no_ids;
  no_ids.inputs = {ids_input({})};
  EXPECT_TRUE(mentions(error(no_ids), "input_ids"));
  EXPECT_TRUE(mentions(error(with(text_request("Once"), RequestParameter{"input_ids", std::string("[1]")})),
                       "input_ids"));
}

TEST_F(RequestAdapterTest, EveryInputMustBeKnownAndOfItsTypeAndSize) {
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

TEST_F(RequestAdapterTest, AStringsLengthMustBeThatOfItsBytes) {
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

TEST_F(RequestAdapterTest, EveryFlagBringsItsOutput) {
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

TEST_F(RequestAdapterTest, AListOfOutputsIsMeantUnlessItIsAllOfThem) {
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

TEST_F(RequestAdapterTest, AConversationIsLeftToBeRendered) {
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

TEST_F(RequestAdapterTest, APromptIsGivenInOneForm) {
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

TEST_F(RequestAdapterTest, AMessageIsReadFromText) {
  const ClientRequest request = with_outputs(text_request("Once"), {"message"});
  EXPECT_TRUE(adapt(request).request.sampling_params.detokenize);
  EXPECT_TRUE(adapt(request).response.only_messages());
  EXPECT_TRUE(mentions(error(with(request, RequestParameter{"detokenize", false})), "detokenize"));
  EXPECT_FALSE(adapt(with_outputs(text_request("Once"), {"message", "output_ids"})).response.only_messages());
}

TEST_F(RequestAdapterTest, AFlagAddsToTheOutputsThatAreListed) {
  const ResponseOptions options = adapt(with(with_outputs(text_request("Once"), {"text_output"}),
                                             bool_input("return_finish_reason", true)))
                                      .response;
  EXPECT_TRUE(options.text_output);
  EXPECT_TRUE(options.finish_reason);
}

TEST_F(RequestAdapterTest, AnErrorIsShortWhateverTheClientNamed) {
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

TEST_F(RequestAdapterTest, AnIdIsUniqueOnlyWhenItIsAnInput) {
  ClientRequest request = text_request("Once");
  request.id = "client";
  EXPECT_EQ(adapt(request).request_id, "client");
  EXPECT_FALSE(adapt(request).unique_id);
  const AdaptedRequest named = adapt(with(request, string_input("request_id", "mine")));
  EXPECT_EQ(named.request_id, "mine");
  EXPECT_TRUE(named.unique_id);
  EXPECT_FALSE(adapt(with(request, string_input("request_id", ""))).unique_id);
}

TEST_F(RequestAdapterTest, ACancelNeedsAnIdAndNothingElse) {
  ClientRequest request;
  request.inputs = {bool_input("cancel", true)};
  EXPECT_TRUE(mentions(error(request), "request_id"));
  request.id = "client";
  EXPECT_TRUE(adapt(request).cancel);
  EXPECT_EQ(adapt(request).request_id, "client");
  EXPECT_FALSE(adapt(with(text_request("Once"), bool_input("cancel", false))).cancel);
}

}  // namespace
}  // namespace quire::triton::host
