// OpenAI's API as text: what bodies ask for, and what answers look like.
#include "quire/http_api.h"

#include <gtest/gtest.h>

#include <limits>

#include "formats/json.h"
#include "http_api/http_answer.h"
#include "http_api/request_body.h"
#include "quire/error.h"

namespace quire {
namespace {

HttpApiConfig config() {
  HttpApiConfig config;
  config.served_model_names = {"mine", "other"};
  return config;
}

std::string refusal(const std::string& body, bool chat = false) {
  try {
    chat ? read_chat_completions(body, config()) : read_completions(body, config());
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(HttpBodyTest, PromptsAreTextsOrTokenIdsOrSeveralOfThem) {
  const auto read = [](const std::string& prompt) {
    return read_completions("{\"prompt\": " + prompt + "}", config()).requests;
  };
  EXPECT_EQ(read("\"a\"").at(0).prompt, "a");
  EXPECT_EQ(read("[1, 2]").at(0).prompt_token_ids, (std::vector<int32_t>{1, 2}));
  const auto several = read("[\"a\", [3]]");
  ASSERT_EQ(several.size(), 2U);
  EXPECT_EQ(several[0].prompt, "a");
  EXPECT_EQ(several[1].prompt_token_ids, std::vector<int32_t>{3});
}

TEST(HttpBodyTest, WhatIsNoPromptIsRefusedWithItsPlace) {
  EXPECT_EQ(refusal("{}"), "prompt is missing; give a string, token ids, or an array of either");
  EXPECT_EQ(refusal("{\"prompt\": [\"a\", \"\"]}"), "prompt[1] is empty; give at least one token");
  EXPECT_NE(refusal("{\"prompt\": [1, -2]}").find("prompt[1] must be a token id"), std::string::npos);
  EXPECT_NE(refusal("{\"prompt\": [1, 4294967296]}").find("prompt[1]"), std::string::npos);
  EXPECT_NE(refusal("{\"prompt\": []}").find("got []"), std::string::npos);
  EXPECT_EQ(read_completions(R"({"prompt": ["a", "b", "c", "d"], "n": 256})", config()).requests.size(), 4U);
  Json many = {{"prompt", Json::array()}, {"n", 256}};
  for (int i = 0; i < 65; ++i) many["prompt"].push_back("a");
  EXPECT_EQ(refusal(many.dump()), "n must be at most 252 with 65 prompts, got 256; send several requests");
}

TEST(HttpBodyTest, AConversationEndsByItselfAndACompletionAfterSixteenTokens) {
  const auto completion = read_completions(R"({"prompt": "a"})", config());
  EXPECT_EQ(completion.requests.at(0).sampling_params.max_tokens, 16);
  const std::string messages = R"("messages": [{"role": "user", "content": "a"}])";
  const auto chat = read_chat_completions("{" + messages + "}", config());
  EXPECT_EQ(chat.requests.at(0).sampling_params.max_tokens, std::numeric_limits<int32_t>::max());
  const auto limited = read_chat_completions("{" + messages + R"(, "max_completion_tokens": 5})", config());
  EXPECT_EQ(limited.requests.at(0).sampling_params.max_tokens, 5);
}

TEST(HttpBodyTest, BodiesAreLaidOverWhatTheModelAdvises) {
  HttpApiConfig advised = config();
  advised.completion_params.temperature = 0.25F;
  advised.completion_params.top_k = 7;
  const auto body = read_completions(R"({"prompt": "a", "top_k": 9})", advised);
  EXPECT_EQ(body.requests.at(0).sampling_params.temperature, 0.25F);
  EXPECT_EQ(body.requests.at(0).sampling_params.top_k, 9);
}

TEST(HttpBodyTest, ASchemasPropertiesKeepTheirOrder) {
  const auto body = read_completions(
      R"({"prompt": "a", "response_format": {"type": "json_schema", "json_schema": {"name": "n",
          "schema": {"properties": {"z": {}, "a": {}}}}}})",
      config());
  EXPECT_EQ(body.requests.at(0).sampling_params.structured_outputs->json->text,
            R"({"properties":{"z":{},"a":{}}})");
}

TEST(HttpBodyTest, AModelThatIsNoServedOneIsLeftToTheEngine) {
  const auto other_model = [](const std::string& model) {
    return read_completions(R"({"prompt": "a", "model": )" + model + "}", config()).other_model;
  };
  EXPECT_EQ(other_model("\"other\""), "");
  EXPECT_EQ(other_model("\"\""), "");
  EXPECT_EQ(other_model("null"), "");
  EXPECT_EQ(other_model("\"adapter\""), "adapter");
  EXPECT_EQ(refusal(R"({"prompt": "a", "model": 1})"), "model must be a string");
}

RequestOutput delta(const std::string& id, int32_t index, const std::string& text, bool finished = false) {
  RequestOutput output;
  output.request_id = id;
  output.outputs.emplace_back();
  output.outputs[0].index = index;
  output.outputs[0].text = text;
  output.outputs[0].finish_reason = finished ? FinishReason::kStop : FinishReason::kNone;
  output.finished = finished;
  output.usage.num_prompt_tokens = 3;
  output.usage.num_generation_tokens = 2;
  return output;
}

HttpAnswerOptions options(bool stream, std::vector<std::string> ids = {"r"}) {
  HttpAnswerOptions options;
  options.body.stream = stream;
  options.info = {"cmpl-1", 7};
  options.model = "mine";
  options.request_ids = std::move(ids);
  return options;
}

std::vector<RequestOutput> one(RequestOutput output) {
  std::vector<RequestOutput> outputs;
  outputs.push_back(std::move(output));
  return outputs;
}

TEST(HttpAnswerTest, AStreamIsEventsAndEndsWithDone) {
  const auto answer = make_completions_answer(options(/*stream=*/true));
  EXPECT_EQ(answer->write(one(delta("r", 0, "a \"b\""))),
            R"(data: {"id":"cmpl-1","object":"text_completion","created":7,"model":"mine","choices":[)"
            R"({"index":0,"text":"a \"b\"","logprobs":null,"finish_reason":null}]})"
            "\n\n");
  EXPECT_FALSE(answer->finished());
  EXPECT_EQ(answer->write(one(delta("r", 0, ""))), "");
  const std::string last = answer->write(one(delta("r", 0, "c", /*finished=*/true)));
  EXPECT_NE(last.find(R"("finish_reason":"stop","stop_reason":null}]})"), std::string::npos);
  EXPECT_TRUE(last.ends_with("data: [DONE]\n\n"));
  EXPECT_TRUE(answer->finished());
}

TEST(HttpAnswerTest, ABodyComesWhenAllPromptsAreDone) {
  const auto answer = make_completions_answer(options(/*stream=*/false, {"p", "q"}));
  EXPECT_EQ(answer->write(one(delta("q", 0, "second", true))), "");
  const Json body = parse_json(answer->write(one(delta("p", 0, "first", true))), "body");
  EXPECT_EQ(body["choices"][0]["text"], "first");
  EXPECT_EQ(body["choices"][1]["text"], "second");
  EXPECT_EQ(body["choices"][1]["index"], 1);
  EXPECT_EQ(body["usage"]["prompt_tokens"], 6);
  EXPECT_EQ(body["usage"]["total_tokens"], 10);
  EXPECT_EQ(answer->status(), 200);
  EXPECT_EQ(answer->finish_reasons(), (std::vector{FinishReason::kStop, FinishReason::kStop}));
}

TEST(HttpAnswerTest, WhatFailsBeforeAnythingWasSentIsAnErrorsBodyAndLaterAnEvent) {
  RequestOutput failed = delta("r", 0, "", true);
  failed.outputs[0].finish_reason = FinishReason::kError;
  failed.outputs[0].error = "it broke";
  const auto early = make_completions_answer(options(true));
  const Json body = parse_json(early->write(one(RequestOutput(failed))), "body");
  EXPECT_EQ(body["error"]["message"], "it broke");
  EXPECT_EQ(early->status(), 500);
  EXPECT_TRUE(early->failed());
  EXPECT_EQ(early->error(), "it broke");
  EXPECT_EQ(early->finish_reasons(), std::vector{FinishReason::kError});
  failed.outputs[0].error = "structured_outputs: nothing can follow";
  const auto at_fault = make_completions_answer(options(true));
  EXPECT_EQ(parse_json(at_fault->write(one(RequestOutput(failed))), "body")["error"]["param"],
            "structured_outputs");
  EXPECT_EQ(at_fault->status(), 400);
  const auto late = make_completions_answer(options(true));
  late->write(one(delta("r", 0, "a")));
  const std::string event = late->write(one(std::move(failed)));
  EXPECT_TRUE(event.starts_with("data: {\"error\":"));
  EXPECT_TRUE(event.ends_with("data: [DONE]\n\n"));
  EXPECT_EQ(late->status(), 200);
}

TEST(HttpAnswerTest, AConversationsFirstEventHasTheRole) {
  const auto answer = make_chat_answer(options(true));
  const std::string first = answer->write(one(delta("r", 0, "Hi")));
  EXPECT_NE(first.find(R"("delta":{"role":"assistant","content":"Hi"})"), std::string::npos);
  EXPECT_NE(answer->write(one(delta("r", 0, "!"))).find(R"("delta":{"content":"!"})"), std::string::npos);
}

RequestOutput failure(const std::string& id) {
  RequestOutput output = delta(id, 0, "", true);
  output.outputs[0].finish_reason = FinishReason::kError;
  output.outputs[0].error = "it broke";
  return output;
}

TEST(HttpAnswerTest, WhatFailsUnderWayEndsAMessageWithAnErrorsEvent) {
  const auto answer = make_messages_answer(options(true));
  EXPECT_TRUE(answer->write(one(delta("r", 0, "a"))).starts_with("event: message_start\n"));
  const std::string events = answer->write(one(failure("r")));
  EXPECT_EQ(events,
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\","
            "\"message\":\"it broke\"}}\n\n");
  EXPECT_TRUE(answer->finished());
}

TEST(HttpAnswerTest, WhatFailsUnderWayIsAResponseThatFailed) {
  const auto answer = make_responses_answer(options(true));
  answer->write(one(delta("r", 0, "a")));
  const std::string events = answer->write(one(failure("r")));
  constexpr std::string_view kBegin = "event: response.failed\ndata: ";
  const size_t begin = events.find(kBegin);
  ASSERT_NE(begin, std::string::npos) << events;
  EXPECT_TRUE(events.starts_with("event: response.output_text.done\n"));
  const Json response = parse_json(events.substr(begin + kBegin.size()), "event")["response"];
  EXPECT_EQ(response["status"], "failed");
  EXPECT_EQ(response["error"]["code"], "server_error");
  EXPECT_EQ(response["error"]["message"], "it broke");
  EXPECT_EQ(response["output"][0]["content"][0]["text"], "a");
  EXPECT_EQ(response["output"][0]["status"], "incomplete");
}

TEST(HttpAnswerTest, WhatTheServerEndsIsPausedOrFailed) {
  RequestOutput aborted = delta("r", 0, "a", true);
  aborted.outputs[0].finish_reason = FinishReason::kAbort;
  const auto message = make_messages_answer(options(false));
  EXPECT_EQ(parse_json(message->write(one(RequestOutput(aborted))), "body")["stop_reason"], "pause_turn");
  const auto response = make_responses_answer(options(false));
  EXPECT_EQ(parse_json(response->write(one(std::move(aborted))), "body")["status"], "failed");
}

TEST(HttpErrorTest, ABodyHasAnthropicsForm) {
  const HttpError error{.status = 503, .message = "asleep", .param = "model", .code = "x"};
  EXPECT_EQ(http_error_body(error, HttpRoute::kMessages),
            R"({"type":"error","error":{"type":"overloaded_error","message":"asleep"}})");
}

TEST(HttpErrorTest, ABodyHasOpenAIsForm) {
  const Json body =
      parse_json(http_error_body({.status = 429, .message = "no \"room\"", .param = "", .code = "queue_full"},
                                 HttpRoute::kCompletions),
                 "body");
  EXPECT_EQ(body["error"]["message"], "no \"room\"");
  EXPECT_EQ(body["error"]["type"], "rate_limit_error");
  EXPECT_TRUE(body["error"]["param"].is_null());
  EXPECT_EQ(body["error"]["code"], "queue_full");
}

}  // namespace
}  // namespace quire
