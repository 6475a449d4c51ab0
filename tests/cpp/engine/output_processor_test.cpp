#include "engine/output_processor.h"

#include <gtest/gtest.h>

#include "quire/error.h"

namespace quire {
namespace {

// Token i is the i-th piece; what follows an incomplete piece completes it.
class FakeTokenizer final : public Tokenizer {
 public:
  explicit FakeTokenizer(std::vector<std::string> pieces) : pieces_(std::move(pieces)) {}
  std::vector<int32_t> encode(std::string_view, bool) const override { return {}; }
  Encoding encode_with_offsets(std::string_view, bool) const override { return {}; }
  std::string decode(std::span<const int32_t> ids, bool) const override {
    std::string text;
    for (int32_t id : ids) text += pieces_.at(static_cast<size_t>(id));
    return text;
  }
  size_t max_token_bytes() const override { return 16; }
  std::unique_ptr<IncrementalDetokenizer> detokenizer(bool) const override {
    struct Detokenizer : IncrementalDetokenizer {
      explicit Detokenizer(const FakeTokenizer& t) : tokenizer(t) {}
      void append(std::span<const int32_t> ids, std::string& out) override {
        out += tokenizer.decode(ids, true);
      }
      void finish(std::string&) override {}
      const FakeTokenizer& tokenizer;
    };
    return std::make_unique<Detokenizer>(*this);
  }
  int32_t vocab_size() const override { return static_cast<int32_t>(pieces_.size()); }
  std::optional<std::string> id_to_token(int32_t) const override { return std::nullopt; }
  std::optional<int32_t> token_to_id(std::string_view) const override { return std::nullopt; }
  bool is_special(int32_t) const override { return false; }
  std::string_view token_bytes(int32_t) const override { return {}; }

 private:
  std::vector<std::string> pieces_;
};

struct Fixture {
  explicit Fixture(std::vector<std::string> pieces, SamplingParams params, ReasoningTokens reasoning = {})
      : processor(std::make_shared<FakeTokenizer>(std::move(pieces)), nullptr, std::move(reasoning)) {
    EngineRequest request;
    request.request_id = "r";
    request.sampling_params = params;
    std::vector<EngineCoreRequest> children(static_cast<size_t>(params.n));
    for (size_t i = 0; i < children.size(); ++i) {
      children[i].request_id = i + 1;
      children[i].prompt_token_ids = {1};
    }
    processor.add_request(std::move(request), children, {},
                          params.stop.empty() ? nullptr : std::make_unique<const StopStrings>(params.stop));
  }
  std::vector<RequestOutput> send(RequestId id, std::vector<int32_t> tokens,
                                  FinishReason reason = FinishReason::kNone) {
    take(id, std::move(tokens), reason);
    return deliver();
  }
  void take(RequestId id, std::vector<int32_t> tokens, FinishReason reason = FinishReason::kNone) {
    EngineCoreOutputs outputs;
    EngineCoreOutput& output = outputs.outputs.emplace_back();
    output.request_id = id;
    output.num_tokens = static_cast<int32_t>(tokens.size());
    outputs.token_ids = std::move(tokens);
    output.finish_reason = reason;
    processor.process_outputs(std::move(outputs), to_abort);
  }
  std::vector<RequestOutput> deliver() {
    std::vector<OutputProcessor::Delivery> deliveries;
    processor.deliver(deliveries);
    std::vector<RequestOutput> result;
    for (auto& delivery : deliveries) result.push_back(std::move(delivery.output));
    return result;
  }
  OutputProcessor processor;
  std::vector<RequestId> to_abort;
};

SamplingParams delta(std::vector<std::string> stop = {}) {
  SamplingParams params;
  params.output_kind = RequestOutputKind::kDelta;
  params.stop = std::move(stop);
  return params;
}

TEST(OutputProcessorTest, AStopStringAcrossTokensEndsTheTextAndTheRequest) {
  Fixture f({"hello ", "wo", "rld", " again"}, delta({"world"}));
  EXPECT_EQ(f.send(1, {0})[0].outputs[0].text, "hello ");
  EXPECT_EQ(f.send(1, {1})[0].outputs[0].text, "");  // "wo" may be the beginning of "world"
  const auto outputs = f.send(1, {2, 3});
  ASSERT_EQ(outputs.size(), 1U);
  EXPECT_TRUE(outputs[0].finished);
  EXPECT_EQ(outputs[0].outputs[0].text, "");
  EXPECT_EQ(outputs[0].outputs[0].finish_reason, FinishReason::kStop);
  EXPECT_EQ(std::get<std::string>(outputs[0].outputs[0].stop_reason), "world");
  EXPECT_EQ(outputs[0].outputs[0].token_ids, std::vector<int32_t>{2});  // " again" is not counted
  EXPECT_EQ(f.to_abort, std::vector<RequestId>{1});
}

// The prompt is token 1, which opens a block.
TEST(OutputProcessorTest, UsageIsOfAllCompletionsSoFarWhateverADeltaLists) {
  SamplingParams params = delta({"!"});
  params.n = 2;
  Fixture f({"a", "<", ">", "!"}, params, {{1}, {2, 2}});
  EXPECT_EQ(f.send(1, {0, 0})[0].usage, (RequestUsage{1, 0, 2, 2}));
  EXPECT_EQ(f.send(2, {0, 2})[0].usage, (RequestUsage{1, 0, 4, 3}));  // perhaps the end begins
  RequestOutput output = f.send(2, {2, 0, 0})[0];
  EXPECT_EQ(output.usage, (RequestUsage{1, 0, 7, 3}));
  EXPECT_EQ(output.outputs.at(0).num_reasoning_tokens, 1);
  output = f.send(1, {0, 3, 0, 0})[0];  // stopped by a string: two tokens are dropped
  EXPECT_EQ(output.usage, (RequestUsage{1, 0, 9, 5}));
  EXPECT_EQ(output.outputs.at(0).num_reasoning_tokens, 4);
  output = f.send(2, {0}, FinishReason::kLength)[0];
  EXPECT_TRUE(output.finished);
  EXPECT_EQ(output.usage, (RequestUsage{1, 0, 10, 5}));
}

TEST(OutputProcessorTest, StopStringsCountOnlyAfterMinTokens) {
  SamplingParams params = delta({"b"});
  params.min_tokens = 3;
  Fixture f({"ab", "c", "b!"}, params);
  EXPECT_EQ(f.send(1, {0})[0].outputs[0].text, "ab");
  EXPECT_EQ(f.send(1, {1})[0].outputs[0].text, "c");
  const auto outputs = f.send(1, {2});
  EXPECT_TRUE(outputs[0].finished);
  EXPECT_EQ(outputs[0].outputs[0].text, "");
  EXPECT_EQ(outputs[0].outputs[0].finish_reason, FinishReason::kStop);
}

TEST(OutputProcessorTest, TextHeldBackIsReleasedWhenItIsNoStopString) {
  Fixture f({"wo", "od"}, delta({"world"}));
  EXPECT_EQ(f.send(1, {0})[0].outputs[0].text, "");
  EXPECT_EQ(f.send(1, {1})[0].outputs[0].text, "wood");
}

TEST(OutputProcessorTest, TheEarliestStopStringWins) {
  Fixture f({"a b c"}, delta({"c", "b"}));
  const auto outputs = f.send(1, {0});
  EXPECT_EQ(outputs[0].outputs[0].text, "a ");
  EXPECT_EQ(std::get<std::string>(outputs[0].outputs[0].stop_reason), "b");
}

TEST(OutputProcessorTest, TextOfTokensBelowMinTokensIsNotHeldBack) {
  SamplingParams params = delta({"wood"});
  params.min_tokens = 2;
  Fixture f({"wo", "od", "wood"}, params);
  EXPECT_EQ(f.send(1, {0})[0].outputs[0].text, "wo");
  EXPECT_EQ(f.send(1, {1})[0].outputs[0].text, "od") << "it began too early";
  EXPECT_TRUE(f.send(1, {2})[0].finished);
}

TEST(OutputProcessorTest, DeliveredLogprobsAreNotKept) {
  for (const auto kind : {RequestOutputKind::kDelta, RequestOutputKind::kFinalOnly}) {
    SamplingParams params;
    params.output_kind = kind;
    params.logprobs = 1;
    Fixture f({"a", "b"}, params);
    const auto take = [&f](int32_t token, FinishReason reason = FinishReason::kNone) {
      EngineCoreOutputs outputs;
      outputs.token_ids = {token};
      EngineCoreOutput& output = outputs.outputs.emplace_back();
      output.request_id = 1;
      output.num_tokens = 1;
      output.finish_reason = reason;
      output.new_logprobs = std::vector<PositionLogprobs>{{{token, -0.5F, 1}, {7, -1.0F, 2}}};
      f.processor.process_outputs(std::move(outputs), f.to_abort);
    };
    take(0);
    const auto before = f.deliver();
    EXPECT_EQ(f.processor.num_kept_logprobs(), kind == RequestOutputKind::kDelta ? 0U : 1U);
    take(1);
    take(0, FinishReason::kLength);
    const CompletionOutput last = f.deliver().at(0).outputs.at(0);
    const bool deltas = kind == RequestOutputKind::kDelta;
    EXPECT_EQ(before.size(), deltas ? 1U : 0U);
    if (deltas) {
      EXPECT_EQ(before.at(0).outputs.at(0).logprobs.at(0).at(0).token_id, 0);
    }
    ASSERT_EQ(last.logprobs.size(), last.token_ids.size());
    EXPECT_EQ(last.token_ids, deltas ? (std::vector<int32_t>{1, 0}) : (std::vector<int32_t>{0, 1, 0}));
    for (size_t i = 0; i < last.logprobs.size(); ++i)
      EXPECT_EQ(last.logprobs[i].at(0).token_id, last.token_ids[i]);
    EXPECT_EQ(last.cumulative_logprob, -1.5);
  }
}

TEST(OutputProcessorTest, UnfinishedCompletionsAreCounted) {
  SamplingParams params = delta();
  params.n = 3;
  Fixture f({"a"}, params);
  EXPECT_EQ(f.processor.num_unfinished_completions(), 3U);
  f.send(2, {0}, FinishReason::kLength);
  EXPECT_EQ(f.processor.num_unfinished_completions(), 2U);
  EXPECT_EQ(f.processor.num_unfinished_requests(), 1U);
}

TEST(OutputProcessorTest, TheStopStringIsKeptWhenAskedFor) {
  SamplingParams params = delta({"b"});
  params.include_stop_str_in_output = true;
  Fixture f({"a b c"}, params);
  EXPECT_EQ(f.send(1, {0})[0].outputs[0].text, "a b");
}

TEST(OutputProcessorTest, TheTextOfAStopTokenIsNotPartOfTheAnswer) {
  Fixture f({"yes", "<end>"}, delta());
  const auto outputs = f.send(1, {0, 1}, FinishReason::kStop);
  EXPECT_EQ(outputs[0].outputs[0].text, "yes");
  EXPECT_EQ(outputs[0].outputs[0].token_ids, (std::vector<int32_t>{0, 1}));
}

TEST(OutputProcessorTest, ARequestIsFinishedWhenAllItsCompletionsAre) {
  SamplingParams params;
  params.n = 2;
  Fixture f({"a", "b"}, params);
  EXPECT_FALSE(f.send(2, {1}, FinishReason::kLength)[0].finished);
  const auto outputs = f.send(1, {0}, FinishReason::kLength);
  ASSERT_TRUE(outputs[0].finished);
  EXPECT_EQ(outputs[0].outputs[0].text, "a");
  EXPECT_EQ(outputs[0].outputs[1].text, "b");
  EXPECT_EQ(f.processor.num_unfinished_requests(), 0U);
}

TEST(OutputProcessorTest, DeltasListOnlyCompletionsWithNews) {
  SamplingParams params = delta();
  params.n = 2;
  Fixture f({"a", "b"}, params);
  const auto outputs = f.send(2, {1});
  ASSERT_EQ(outputs[0].outputs.size(), 1U);
  EXPECT_EQ(outputs[0].outputs[0].index, 1);
}

TEST(OutputProcessorTest, FinalOnlySpeaksOnce) {
  SamplingParams params;
  params.output_kind = RequestOutputKind::kFinalOnly;
  Fixture f({"a", "b"}, params);
  EXPECT_TRUE(f.send(1, {0}).empty());
  EXPECT_EQ(f.send(1, {1}, FinishReason::kLength)[0].outputs[0].text, "ab");
}

TEST(OutputProcessorTest, AnAbortReportsWhatThereIs) {
  Fixture f({"wo"}, delta({"world"}));
  f.send(1, {0});
  std::vector<OutputProcessor::Delivery> deliveries;
  EXPECT_TRUE(f.processor.finish_request("r", FinishReason::kAbort, "", deliveries, f.to_abort));
  ASSERT_EQ(deliveries.size(), 1U);
  EXPECT_EQ(deliveries[0].output.outputs[0].text, "wo");
  EXPECT_EQ(deliveries[0].output.outputs[0].finish_reason, FinishReason::kAbort);
  EXPECT_TRUE(f.send(1, {0}).empty());  // tokens still in flight are dropped
  EXPECT_FALSE(f.processor.finish_request("r", FinishReason::kAbort, "", deliveries, f.to_abort));
}

TEST(OutputProcessorTest, StepsThatWaitedTogetherAreOneDelivery) {
  for (const auto kind : {RequestOutputKind::kDelta, RequestOutputKind::kCumulative}) {
    SamplingParams params;
    params.output_kind = kind;
    Fixture f({"a", "b", "c"}, params);
    f.take(1, {0});
    f.take(1, {1, 2}, FinishReason::kLength);
    EXPECT_TRUE(f.processor.has_request("r")) << "until it is delivered";
    const auto outputs = f.deliver();
    ASSERT_EQ(outputs.size(), 1U);
    EXPECT_EQ(outputs[0].outputs[0].text, "abc");
    EXPECT_EQ(outputs[0].outputs[0].token_ids, (std::vector<int32_t>{0, 1, 2}));
    EXPECT_TRUE(outputs[0].finished);
    EXPECT_FALSE(f.processor.has_request("r"));
    EXPECT_TRUE(f.deliver().empty());
  }
}

TEST(OutputProcessorTest, AnAbortTakesWhatWasNotDeliveredAlong) {
  Fixture f({"a", "b"}, delta());
  f.take(1, {0, 1});
  std::vector<OutputProcessor::Delivery> deliveries;
  EXPECT_TRUE(f.processor.finish_request("r", FinishReason::kAbort, "", deliveries, f.to_abort));
  EXPECT_EQ(deliveries.at(0).output.outputs.at(0).text, "ab");
  EXPECT_TRUE(f.deliver().empty());
}

TEST(OutputProcessorTest, ARequestThatWasNotAcceptedLeavesNothing) {
  Fixture f({"a"}, delta());
  f.processor.drop_request("r");
  EXPECT_EQ(f.processor.num_unfinished_requests(), 0U);
  EXPECT_EQ(f.processor.num_unfinished_tokens(), 0);
  EXPECT_TRUE(f.send(1, {0}).empty());
}

TEST(OutputProcessorTest, PromptLogprobsComeWithTheFirstTokenAndInAStreamOnce) {
  for (const RequestOutputKind kind : {RequestOutputKind::kCumulative, RequestOutputKind::kDelta}) {
    SamplingParams params;
    params.output_kind = kind;
    params.prompt_logprobs = 0;
    Fixture fixture({"a", "b"}, params);
    EngineCoreOutputs step;
    step.token_ids = {0};
    EngineCoreOutput& output = step.outputs.emplace_back();
    output.request_id = 1;
    output.num_tokens = 1;
    step.prompt_logprobs = {{0, {{}, {{5, -1.0F, 2}}}}};
    std::vector<RequestId> to_abort;
    fixture.processor.process_outputs(std::move(step), to_abort);
    const auto first = fixture.deliver();
    ASSERT_TRUE(first.at(0).prompt_logprobs);
    EXPECT_EQ(*first[0].prompt_logprobs, (std::vector<PositionLogprobs>{{}, {{5, -1.0F, 2}}}));
    const auto second = fixture.send(1, {1}, FinishReason::kLength);
    EXPECT_EQ(second.at(0).prompt_logprobs != nullptr, kind == RequestOutputKind::kCumulative);
  }
}

}  // namespace
}  // namespace quire
