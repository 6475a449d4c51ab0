#include "engine/admission.h"

#include <gtest/gtest.h>

#include "quire/error.h"
#include "scheduler/step_time_model.h"
#include "util/error_of.h"

namespace quire {
namespace {

std::string refusal(EngineConfig config, const AdmissionState& state,
                    std::vector<AdmissionRequest> requests) {
  config.max_num_seqs = config.max_num_seqs.value_or(64);
  config.max_num_batched_tokens = config.max_num_batched_tokens.value_or(2048);
  return error_of<ResourceExhausted>([&] { check_admission(config, state, requests); });
}

#define EXPECT_SAYS(text, word) EXPECT_NE((text).find(word), std::string::npos) << (text)

TEST(AdmissionTest, RequestsAreCountedTogether) {
  EngineConfig config;
  config.max_queued_requests = 3;
  AdmissionState state;
  state.num_unfinished_reqs = 1;
  EXPECT_EQ(refusal(config, state, {{5}, {5}}), "");
  const std::string text = refusal(config, state, {{5}, {5}, {5}});
  EXPECT_SAYS(text, "1 requests are unfinished");
  EXPECT_SAYS(text, "3 more would exceed max_queued_requests 3; try again later");
  EXPECT_EQ(refusal(config, state, {{5, 2}}), "");
  EXPECT_SAYS(refusal(config, state, {{5, 3}}), "3 more would exceed max_queued_requests 3; try again later");
  EXPECT_SAYS(refusal(config, state, {{5, 4}}), "ask for fewer at once");
}

TEST(AdmissionTest, WhoWaitsForAnAdapterWaitsWhoeverRuns) {
  EngineConfig config;
  config.max_waiting_requests = 2;
  config.max_num_seqs = 8;
  AdmissionState state;
  state.num_waiting_for_lora = 1;
  const AdmissionRequest begins{5}, waits{5, 1, 0, /*waits_for_lora=*/true};
  EXPECT_EQ(refusal(config, state, {begins, waits, begins}), "");
  EXPECT_SAYS(refusal(config, state, {waits, waits}), "0 requests run, 1 wait, 2 more would exceed");
  state.num_waiting_for_lora = 2;
  EXPECT_EQ(refusal(config, state, {}), "");
  EXPECT_SAYS(refusal(config, state, {waits}), "2 wait, 1 more would exceed max_waiting_requests 2");
}

TEST(AdmissionTest, PromptTokensAreCountedOnceForEachCompletion) {
  EngineConfig config;
  config.max_queued_tokens = 100;
  AdmissionState state;
  state.num_unfinished_tokens = 40;
  EXPECT_EQ(refusal(config, state, {{20, 3}}), "");
  const std::string text = refusal(config, state, {{20, 3}, {1}});
  EXPECT_SAYS(text, "40 tokens, 61 more would exceed max_queued_tokens 100");
}

TEST(AdmissionTest, WhatRunsDoesNotCountAsWaiting) {
  EngineConfig config;
  config.max_num_seqs = 4;
  config.max_waiting_requests = 2;
  AdmissionState state;
  EXPECT_EQ(refusal(config, state, {{5, 6}}), "") << "four begin at once";
  EXPECT_SAYS(refusal(config, state, {{5, 7}}), "7 more would exceed max_waiting_requests 2");
  state.stats.num_running_reqs = 3;
  EXPECT_EQ(refusal(config, state, {{5, 3}}), "");
  state.num_submitted_reqs = 1;  // on its way to the engine core
  EXPECT_EQ(refusal(config, state, {{5, 2}}), "");
  EXPECT_SAYS(refusal(config, state, {{5, 3}}), "3 requests run, 1 wait, 3 more");
  // Memory is short: whoever comes waits, although fewer than max_num_seqs run.
  state.num_submitted_reqs = 0;
  state.stats.num_waiting_reqs = 1;
  EXPECT_EQ(refusal(config, state, {{5}}), "");
  EXPECT_SAYS(refusal(config, state, {{5}, {5}}), "max_waiting_requests 2");
}

TEST(AdmissionTest, NothingComesInWhileDraining) {
  AdmissionState state;
  state.draining = true;
  EXPECT_SAYS(refusal({}, state, {{1}}), "draining");
}

// 2 requests run; a step takes 10 ms and 0.1 ms a token; 100 tokens of prompts fit beside what runs.
AdmissionState measured(EngineConfig& config) {
  config.max_num_seqs = 8;
  config.max_num_batched_tokens = 102;
  AdmissionState state;
  state.stats.num_running_reqs = 2;
  state.stats.num_waiting_reqs = 1;
  state.stats.num_waiting_tokens = 100;
  state.stats.num_prefill_tokens = 50;
  state.stats.time_per_step = 0.010;
  state.stats.time_per_token = 0.0001;
  return state;
}

TEST(AdmissionTest, ADeadlineThatCannotBeMetIsRefusedWithThePrediction) {
  EngineConfig config;
  const AdmissionState state = measured(config);
  // 150 tokens ahead and 50 of its own: 2 steps of 10.2 ms, and 20 ms for the tokens.
  EXPECT_EQ(refusal(config, state, {{50, 1, 41}}), "");
  const std::string text = refusal(config, state, {{50, 1, 40}});
  EXPECT_SAYS(text, "deadline_ms 40");
  EXPECT_SAYS(text, "predicted in 41 ms");
  EXPECT_SAYS(text, "2 requests run, 1 wait, 150 prompt tokens are ahead");
}

TEST(AdmissionTest, RequestsOnTheirWayAndThoseBeforeItInTheBatchAreAheadToo) {
  EngineConfig config;
  AdmissionState state = measured(config);
  state.stats.num_added_reqs = 7;
  state.stats.num_added_tokens = 700;
  state.num_submitted_reqs = 8;
  state.num_submitted_tokens = 750;
  // 50 on their way, 2 x 25 of the one before: 300 tokens in 3 steps: 30.6 + 30 ms.
  const std::string text = refusal(config, state, {{25, 2}, {50, 1, 60}});
  EXPECT_SAYS(text, "predicted in 61 ms");
  EXPECT_SAYS(text, "4 wait, 250 prompt tokens");
}

TEST(AdmissionTest, WithNothingMeasuredEveryDeadlineMayBeMet) {
  EXPECT_EQ(refusal({}, {}, {{100000, 1, 1}}), "");
}

TEST(StepTimeModelTest, TwoSizesOfStepsTellTheStepFromItsTokens) {
  StepTimeModel model;
  model.observe(10, 0.020);
  model.observe(110, 0.120);
  EXPECT_NEAR(model.time_per_token(), 0.001, 1e-9);
  EXPECT_NEAR(model.time_per_step(), 0.010, 1e-9);
}

TEST(StepTimeModelTest, StepsOfOneSizeAreAllTokens) {
  StepTimeModel model;
  for (int i = 0; i < 5; ++i) model.observe(4, 0.008);
  EXPECT_NEAR(model.time_per_token(), 0.002, 1e-9);
  EXPECT_NEAR(model.time_per_step(), 0.0, 1e-9);
}

TEST(StepTimeModelTest, OlderStepsWeighLess) {
  StepTimeModel model;
  for (int i = 0; i < 10; ++i) model.observe(1, 1.0);
  for (int i = 0; i < 500; ++i) model.observe(1, 0.001);
  EXPECT_NEAR(model.time_per_token(), 0.001, 0.001);
}

TEST(PredictTtftTest, WithoutAPlaceToRunItWaitsForOneToLeave) {
  SchedulerStats stats;
  stats.num_running_reqs = 2;
  stats.time_per_step = 0.010;
  stats.time_per_token = 0.0001;
  stats.mean_service_time = 3.0;
  TtftQuestion question;
  question.max_num_seqs = 2;
  question.max_num_batched_tokens = 102;
  question.num_prompt_tokens = 50;
  // Two leave in 3 s, so one in 1.5; then one step: 10 + 0.2 + 5 ms.
  EXPECT_NEAR(predict_ttft(stats, question), 1.5152, 1e-9);
}

}  // namespace
}  // namespace quire
