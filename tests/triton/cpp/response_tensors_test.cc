#include "response_tensors.h"

#include <nlohmann/json.hpp>

#include "host/host.h"
#include "triton_test.h"

namespace quire::triton::host {
namespace {

ResponseOptions all_options() {
  ResponseOptions options;
  options.output_ids = options.finish_reason = options.cumulative_logprob = options.logprobs = true;
  options.prompt_logprobs = options.num_input_tokens = options.num_output_tokens = true;
  options.cum_log_probs = options.output_log_probs = options.message = options.usage = true;
  return options;
}

CompletionOutput completion(int32_t index, const std::string& text, std::vector<int32_t> ids) {
  CompletionOutput made;
  made.index = index;
  made.text = text;
  made.token_ids = std::move(ids);
  return made;
}

class Built {
 public:
  Built(ResponseTensors& builder, std::vector<CompletionOutput> completions,
        std::vector<PositionLogprobs> prompt_logprobs = {}) {
    RequestOutput output;
    if (!prompt_logprobs.empty()) {
      output.prompt_logprobs =
          std::make_shared<const std::vector<PositionLogprobs>>(std::move(prompt_logprobs));
    }
    output.outputs = std::move(completions);
    output.prompt_token_ids = std::make_shared<const std::vector<int32_t>>(std::vector<int32_t>{1, 2, 3});
    tensors_.resize(3);  // of the response before: it is overwritten
    builder.build(output, tensors_);
  }
  const OutputTensor& operator[](const std::string& name) const {
    for (const OutputTensor& tensor : tensors_) {
      if (tensor.name == name) return tensor;
    }
    throw std::out_of_range(name);
  }
  std::vector<std::string> texts(const std::string& name) const {
    return strings({{}, {}, (*this)[name].bytes});
  }
  template <typename T>
  std::vector<T> values(const std::string& name) const {
    return numbers<T>({{}, {}, (*this)[name].bytes});
  }
  size_t size() const { return tensors_.size(); }

 private:
  std::vector<OutputTensor> tensors_;
};

TEST(ResponseTensorsTest, OnlyWhatIsAskedForIsThere) {
  ResponseTensors builder({}, 1, "", nullptr);
  const Built built(builder, {completion(0, "a", {1})});
  EXPECT_EQ(built.size(), 1U);
  EXPECT_EQ(built["text_output"].shape, std::vector<int64_t>{1});
}

TEST(ResponseTensorsTest, EveryTensorAgreesWithTheConfiguration) {
  ResponseTensors builder(all_options(), 2, "", nullptr);
  const Built built(builder, {completion(1, "a", {1, 2})});
  ASSERT_EQ(built.size(), output_specs().size());
  for (const TensorSpec& spec : output_specs()) {
    EXPECT_EQ(built[spec.name].datatype, spec.datatype) << spec.name;
    ASSERT_EQ(built[spec.name].shape.size(), spec.dims.size()) << spec.name;
  }
}

TEST(ResponseTensorsTest, ARowWithoutNewsIsEmptyAndKeepsWhatItWas) {
  ResponseTensors builder(all_options(), 3, "", nullptr);
  CompletionOutput first = completion(0, "a", {7});
  first.finish_reason = FinishReason::kStop;
  first.cumulative_logprob = -1.5;
  Built(builder, {first});
  const Built built(builder, {completion(2, "c", {8, 9})});
  EXPECT_EQ(built.texts("text_output"), (std::vector<std::string>{"", "", "c"}));
  EXPECT_EQ(built.texts("finish_reason"), (std::vector<std::string>{"stop", "None", "None"}));
  EXPECT_EQ(built.values<float>("cumulative_logprob"), (std::vector<float>{-1.5F, 0, 0}));
  EXPECT_EQ(built.values<uint32_t>("num_output_tokens"), (std::vector<uint32_t>{0, 0, 2}));
  EXPECT_EQ(built.values<uint32_t>("num_input_tokens"), std::vector<uint32_t>{3});
  EXPECT_EQ(built.texts("logprobs"), (std::vector<std::string>{"[]", "[]", "[]"}));
}

ResponseOptions message_options(bool stream) {
  ResponseOptions options;
  options.text_output = false;
  options.message = options.finish_reason = true;
  options.stream = stream;
  return options;
}

ChatAnswerOptions hermes() {
  ChatAnswerOptions chat;
  chat.format = ChatFormat::make("", "hermes");
  return chat;
}

TEST(ResponseTensorsTest, EachRowHasAMessageAndEndsForItsCalls) {
  ResponseTensors builder(message_options(false), 2, "", nullptr, hermes());
  CompletionOutput one = completion(0, R"(<tool_call>{"name": "f", "arguments": {}}</tool_call>)", {7});
  CompletionOutput two = completion(1, "Yes.", {8});
  one.finish_reason = two.finish_reason = FinishReason::kStop;
  const Built built(builder, {one, two});
  EXPECT_EQ(built.texts("finish_reason"), (std::vector<std::string>{"tool_calls", "stop"}));
  EXPECT_EQ(nlohmann::json::parse(built.texts("message")[0])["tool_calls"][0]["function"]["name"], "f");
  EXPECT_EQ(built.texts("message")[1], R"({"role":"assistant","content":"Yes."})");
}

TEST(ResponseTensorsTest, WhatAParserHoldsBackIsNoNewsForOneWhoHasMessagesOnly) {
  const auto has_news = [](ResponseTensors& builder, CompletionOutput news) {
    RequestOutput output;
    output.outputs = {std::move(news)};
    std::vector<OutputTensor> tensors;
    return builder.build(output, tensors);
  };
  ResponseTensors builder(message_options(true), 1, "", nullptr, hermes());
  EXPECT_FALSE(has_news(builder, completion(0, "<tool", {1})));
  EXPECT_TRUE(has_news(builder, completion(0, "s", {1})));
  CompletionOutput last = completion(0, "", {2});
  last.finish_reason = FinishReason::kStop;
  EXPECT_TRUE(has_news(builder, last));
  ResponseOptions with_text = message_options(true);
  with_text.text_output = true;
  ResponseTensors other(with_text, 1, "", nullptr, hermes());
  EXPECT_TRUE(has_news(other, completion(0, "<tool", {1})));
}

TEST(ResponseTensorsTest, LogprobsOfTheChosenTokensAreNumbersWithZerosBehindThem) {
  ResponseTensors builder(all_options(), 2, "", nullptr);
  CompletionOutput one = completion(0, "", {7}), two = completion(1, "", {8, 9});
  one.logprobs = {{{7, -0.5F, 2}, {1, -0.25F, 1}}};
  two.logprobs = {{{8, -1.0F, 1}}, {{9, -2.0F, 1}}};
  two.cumulative_logprob = -3.0;
  const Built built(builder, {one, two});
  EXPECT_EQ(built["output_log_probs"].shape, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(built.values<float>("output_log_probs"), (std::vector<float>{-0.5F, 0, -1, -2}));
  EXPECT_EQ(built.values<float>("cum_log_probs"), (std::vector<float>{0, -3}));
}

TEST(ResponseTensorsTest, UsageIsOfTheWholeRequestAndKeepsWhyCompletionsStopped) {
  ResponseTensors builder(all_options(), 3, "", nullptr);
  CompletionOutput text = completion(0, "a", {7}), token = completion(1, "b", {8});
  text.stop_reason = "END";
  token.stop_reason = 8;
  Built(builder, {text, token});
  RequestOutput output;
  output.usage = {
      .num_prompt_tokens = 5, .num_cached_tokens = 4, .num_generation_tokens = 3, .num_reasoning_tokens = 2};
  output.metrics.arrival_time = 1;
  output.metrics.first_scheduled_time = 1.25;
  output.metrics.first_token_time = 2;
  output.metrics.last_token_time = 4;
  output.metrics.mean_time_per_output_token = 0.5;
  std::vector<OutputTensor> tensors;
  builder.build(output, tensors);
  ASSERT_STREQ(tensors.back().name, "usage");
  EXPECT_EQ(strings({{}, {}, tensors.back().bytes}),
            std::vector<std::string>{
                R"({"prompt_tokens":5,"cached_tokens":4,"completion_tokens":3,"reasoning_tokens":2,)"
                R"("stop_reasons":["END",8,null],"queued_time":0.25,"prefill_time":0.75,)"
                R"("first_token_latency":1.0,"decode_time":2.0,"inference_time":2.75,)"
                R"("mean_time_per_output_token":0.5})"});
}

TEST(ResponseTensorsTest, ABatchDimensionComesFirst) {
  ResponseOptions options = all_options();
  options.batched = true;
  ResponseTensors builder(options, 2, "", nullptr);
  const Built built(builder, {completion(1, "a", {1, 2, 3})});
  EXPECT_EQ(built["text_output"].shape, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(built["output_ids"].shape, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(built["num_input_tokens"].shape, (std::vector<int64_t>{1, 1}));
}

TEST(ResponseTensorsTest, ShorterRowsOfIdsArePadded) {
  ResponseTensors builder(all_options(), 3, "", nullptr);
  const Built built(builder, {completion(0, "", {1}), completion(2, "", {4, 5, 6})});
  EXPECT_EQ(built["output_ids"].shape, (std::vector<int64_t>{3, 3}));
  EXPECT_EQ(built.values<int32_t>("output_ids"), (std::vector<int32_t>{1, -1, -1, -1, -1, -1, 4, 5, 6}));
}

TEST(ResponseTensorsTest, WithoutAnyIdTheRowsAreEmpty) {
  ResponseTensors builder(all_options(), 2, "", nullptr);
  const Built built(builder, {});
  EXPECT_EQ(built["output_ids"].shape, (std::vector<int64_t>{2, 0}));
  EXPECT_EQ(built["output_ids"].bytes, "");
}

TEST(ResponseTensorsTest, ThePromptComesBeforeEachCompletionOnce) {
  ResponseTensors builder({}, 2, "Once", nullptr);
  EXPECT_EQ(Built(builder, {completion(0, " upon", {})}).texts("text_output"),
            (std::vector<std::string>{"Once upon", "Once"}));
  EXPECT_EQ(Built(builder, {completion(0, " a", {})}).texts("text_output"),
            (std::vector<std::string>{" a", ""}));
}

TEST(ResponseTensorsTest, TextIsPassedOnAsItsBytes) {
  ResponseTensors builder({}, 1, "", nullptr);
  const std::string text = std::string("\xF0\x9F\x98\x80\0\xE5\xAD\x97", 8);
  EXPECT_EQ(Built(builder, {completion(0, text, {})}).texts("text_output"), std::vector<std::string>{text});
}

TEST(ResponseTensorsTest, LogprobsAreVllmsJson) {
  CompletionOutput output = completion(0, "ab", {5, 6});
  output.logprobs = {{{5, -0.5F, 1}, {6, -1.5F, 2}, {5, -0.5F, 1}}, {{6, -INFINITY, 3}}};
  ResponseTensors unnamed(all_options(), 1, "", nullptr);
  const auto json = nlohmann::json::parse(Built(unnamed, {output}).texts("logprobs").at(0));
  ASSERT_EQ(json.size(), 2U);
  EXPECT_EQ(json[0].size(), 2U) << "the chosen one is there once";
  EXPECT_EQ(json[0]["5"]["logprob"], -0.5);
  EXPECT_EQ(json[0]["5"]["rank"], 1);
  EXPECT_TRUE(json[0]["5"]["decoded_token"].is_null());
  EXPECT_TRUE(json[1]["6"]["logprob"].is_null()) << "JSON has no infinity";
}

TEST(ResponseTensorsTest, PromptLogprobsBeginWithNothing) {
  ResponseTensors builder(all_options(), 1, "", nullptr);
  const Built none(builder, {completion(0, "a", {5})});
  EXPECT_EQ(none.texts("prompt_logprobs"), std::vector<std::string>{"[]"});
  const Built built(builder, {completion(0, "a", {5})}, {{}, {{7, -2.0F, 4}, {9, -0.5F, 1}}});
  const auto json = nlohmann::json::parse(built.texts("prompt_logprobs").at(0));
  ASSERT_EQ(json.size(), 2U);
  EXPECT_TRUE(json[0].is_null());
  EXPECT_EQ(json[1]["7"]["rank"], 4);
  EXPECT_EQ(json[1]["9"]["logprob"], -0.5);
}

TEST(ResponseTensorsTest, LogprobsNameEveryTokenAsValidJson) {
  const auto tokenizer = Tokenizer::load(kDemoModel);
  CompletionOutput output = completion(0, "", {});
  for (int32_t id = 0; id < 512; ++id) {  // single bytes of longer characters among them
    output.token_ids.push_back(id);
    output.logprobs.push_back({{id, -1.0F, 1}});
  }
  ResponseTensors builder(all_options(), 1, "", tokenizer);
  const auto json = nlohmann::json::parse(Built(builder, {output}).texts("logprobs").at(0));
  ASSERT_EQ(json.size(), 512U);
  for (const auto& position : json) EXPECT_TRUE(position.front()["decoded_token"].is_string());
}

TEST(ResponseTensorsTest, ARowThatIsNotThereIsOurMistake) {
  ResponseTensors builder({}, 1, "", nullptr);
  EXPECT_THROW(Built(builder, {completion(1, "a", {})}), std::exception);
}

}  // namespace
}  // namespace quire::triton::host
