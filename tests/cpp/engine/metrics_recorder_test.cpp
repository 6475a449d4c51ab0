#include "engine/metrics_recorder.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "engine/fake_metric_sink.h"
#include "util/count_allocations.h"

namespace quire {
namespace {

void report(MetricsRecorder& recorder) {
  recorder.begin_report();
  recorder.report();
}

EngineCoreOutput scheduled_at(double time, int32_t num_cached_tokens = 0) {
  EngineCoreOutput output;
  output.first_scheduled_time = time;
  output.num_cached_tokens = num_cached_tokens;
  return output;
}

TEST(MetricsRecorderTest, ARequestsTimingsAreTakenApart) {
  const auto sink = std::make_shared<FakeMetricSink>();
  MetricsRecorder recorder(sink);
  RequestMetrics request;
  request.arrival_time = 100.0;
  recorder.record_output(request, scheduled_at(102.0, /*num_cached_tokens=*/4), 1, /*num_prompt_tokens=*/7,
                         105.0);
  recorder.record_output(request, scheduled_at(102.0), 3, 7, 105.5);  // drafts were accepted
  recorder.record_output(request, scheduled_at(102.0), 1, 7, 106.5);
  SamplingParams params;
  params.n = 2;
  params.max_tokens = 5;
  recorder.record_finish(request, FinishReason::kLength, 7, params, 107.0);
  recorder.record_request_end(params, 5);
  EXPECT_EQ(sink->count(Metric::kTimeToFirstToken), 0U) << "nothing is told before it is reported";
  report(recorder);
  EXPECT_EQ(sink->sum(Metric::kTimeToFirstToken), 5.0);
  EXPECT_EQ(sink->sum(Metric::kInterTokenLatency), 1.5);
  EXPECT_EQ(sink->count(Metric::kInterTokenLatency), 2U);
  EXPECT_EQ(sink->sum(Metric::kTimePerOutputToken), 1.5);
  EXPECT_EQ(sink->count(Metric::kTimePerOutputToken), 2U);
  EXPECT_EQ(sink->sum(Metric::kE2ERequestLatency), 7.0);
  EXPECT_EQ(sink->sum(Metric::kRequestQueueTime), 2.0);
  EXPECT_EQ(sink->sum(Metric::kRequestPrefillTime), 3.0);
  EXPECT_EQ(sink->sum(Metric::kRequestDecodeTime), 1.5);
  EXPECT_EQ(sink->sum(Metric::kRequestInferenceTime), 4.5);
  EXPECT_EQ(sink->sum(Metric::kRequestTimePerOutputToken), 1.5 / 4);
  EXPECT_EQ(sink->sum(Metric::kRequestParamsN), 2.0);
  EXPECT_EQ(sink->sum(Metric::kRequestMaxNumGenerationTokens), 5.0);
  EXPECT_EQ(sink->sum(Metric::kRequestParamsMaxTokens), 5.0);
  EXPECT_EQ(sink->sum(Metric::kRequestPromptTokens), 7.0);
  EXPECT_EQ(sink->sum(Metric::kRequestGenerationTokens), 5.0);
  EXPECT_EQ(sink->sum(Metric::kRequestPrefillKVComputedTokens), 3.0);
  EXPECT_EQ(sink->counter(Metric::kPromptTokens), 7.0);
  EXPECT_EQ(sink->counter(Metric::kPromptTokensCached), 4.0);
  EXPECT_EQ(sink->counter(Metric::kGenerationTokens), 5.0);
  EXPECT_EQ(sink->finished("length"), 1.0);
  report(recorder);
  EXPECT_EQ(sink->count(Metric::kE2ERequestLatency), 1U) << "and once";
  EXPECT_EQ(sink->finished("length"), 1.0);
}

TEST(MetricsRecorderTest, WhatARequestNeverReachedIsNotObserved) {
  const auto sink = std::make_shared<FakeMetricSink>();
  MetricsRecorder recorder(sink);
  RequestMetrics waited, prefilled;
  waited.arrival_time = prefilled.arrival_time = 10.0;
  recorder.record_output(prefilled, scheduled_at(11.0), 0, 4, 12.0);
  for (const RequestMetrics& request : {waited, prefilled})
    recorder.record_finish(request, FinishReason::kAbort, 4, {}, 13.0);
  report(recorder);
  EXPECT_EQ(sink->finished("abort"), 2.0);
  EXPECT_EQ(sink->count(Metric::kE2ERequestLatency), 2U);
  EXPECT_EQ(sink->count(Metric::kRequestQueueTime), 1U);
  EXPECT_EQ(sink->count(Metric::kRequestPrefillTime), 0U);
  EXPECT_EQ(sink->count(Metric::kRequestDecodeTime), 0U);
  EXPECT_EQ(sink->count(Metric::kRequestTimePerOutputToken), 0U);
  EXPECT_EQ(sink->counter(Metric::kPromptTokens), 0.0);
}

TEST(MetricsRecorderTest, StatsBecomeGaugesAndDifferences) {
  const auto sink = std::make_shared<FakeMetricSink>();
  MetricsRecorder recorder(sink);
  SchedulerStats stats;
  stats.num_total_blocks = 8;
  stats.num_used_blocks = 2;
  stats.num_free_blocks = 4;  // the rest is another engine's
  stats.num_running_reqs = 2;
  stats.num_preemptions = 1;
  stats.prefix_cache_queries = 30;
  recorder.record_stats(stats);
  stats.num_running_reqs = 1;  // two steps that are reported together: the last one counts
  stats.num_preemptions = 4;
  stats.prefix_cache_hits = 16;
  stats.external_prefix_cache_hits = 8;
  stats.num_spec_tokens = 6;
  stats.num_accepted_spec_tokens = 5;
  recorder.record_stats(stats);
  report(recorder);
  EXPECT_EQ(sink->gauge(Metric::kNumRequestsRunning), 1.0);
  EXPECT_EQ(sink->largest(Metric::kNumRequestsRunning), 1.0);
  EXPECT_EQ(sink->gauge(Metric::kKVCacheUsage), 0.25);
  EXPECT_EQ(sink->gauge(Metric::kNumKVCacheBlocks), 8.0);
  EXPECT_EQ(sink->gauge(Metric::kNumKVCacheBlocksUsed), 2.0);
  EXPECT_EQ(sink->counter(Metric::kNumPreemptions), 4.0);
  EXPECT_EQ(sink->counter(Metric::kPrefixCacheQueries), 30.0);
  EXPECT_EQ(sink->counter(Metric::kPrefixCacheHits), 16.0);
  EXPECT_EQ(sink->counter(Metric::kExternalPrefixCacheHits), 8.0);
  EXPECT_EQ(sink->counter(Metric::kSpecDecodeNumDraftTokens), 6.0);
  EXPECT_EQ(sink->counter(Metric::kSpecDecodeNumAcceptedTokens), 5.0);
  report(recorder);  // the sink itself checks that no gauge is set to what it is
  recorder.record_end();
  recorder.record_stats(stats);  // the last step's, told again
  report(recorder);
  EXPECT_EQ(sink->gauge(Metric::kNumRequestsRunning), 0.0);
  EXPECT_EQ(sink->gauge(Metric::kKVCacheUsage), 0.0);
  EXPECT_EQ(sink->gauge(Metric::kNumKVCacheBlocks), 0.0);
  EXPECT_EQ(sink->counter(Metric::kNumPreemptions), 4.0);
}

// Sixty-four requests that decode together: one call tells of them all, and nothing is allocated for it.
TEST(MetricsRecorderTest, ASteadyStepIsOneObservationAndNoAllocation) {
  const auto sink = std::make_shared<FakeMetricSink>();
  MetricsRecorder recorder(sink);
  std::vector<RequestMetrics> requests(64);
  const EngineCoreOutput output = scheduled_at(1.0);
  SchedulerStats stats;
  double now = 1.0;
  const auto step = [&] {
    now += 0.5;
    recorder.record_stats(stats);
    for (RequestMetrics& request : requests) recorder.record_output(request, output, 1, 3, now);
    report(recorder);
  };
  for (int i = 0; i < 3; ++i) step();
  const uint64_t num_calls = sink->num_calls(Metric::kInterTokenLatency);
  const uint64_t before = num_allocations();
  for (int i = 0; i < 10; ++i) step();
  EXPECT_EQ(num_allocations() - before, 0U);
  EXPECT_EQ(sink->num_calls(Metric::kInterTokenLatency) - num_calls, 10U);
  EXPECT_EQ(sink->count(Metric::kInterTokenLatency), 12U * 64);
}

TEST(MetricsRecorderTest, ASinkThatThrowsLosesOnlyThat) {
  struct ThrowingSink final : FakeMetricSink {
    void add(Metric metric, size_t label, double amount) override {
      if (metric == Metric::kPromptTokens) throw std::runtime_error("no");
      FakeMetricSink::add(metric, label, amount);
    }
    void observe(Metric metric, double value, uint64_t count) override {
      if (metric == Metric::kTimeToFirstToken) throw 7;
      FakeMetricSink::observe(metric, value, count);
    }
  };
  const auto sink = std::make_shared<ThrowingSink>();
  MetricsRecorder recorder(sink);
  RequestMetrics request;
  recorder.record_output(request, scheduled_at(1.0), 1, 3, 2.0);
  recorder.record_finish(request, FinishReason::kStop, 3, {}, 2.0);
  report(recorder);
  EXPECT_EQ(sink->counter(Metric::kGenerationTokens), 1.0);
  EXPECT_EQ(sink->finished("stop"), 1.0);
  EXPECT_EQ(sink->count(Metric::kE2ERequestLatency), 1U);
}

TEST(MetricsRecorderTest, TimingsAreKeptWithoutASink) {
  MetricsRecorder recorder(nullptr);
  RequestMetrics request;
  recorder.record_output(request, scheduled_at(1.0), 1, 3, 2.0);
  recorder.record_output(request, scheduled_at(1.0), 1, 3, 4.0);
  report(recorder);
  EXPECT_EQ(request.first_scheduled_time, 1.0);
  EXPECT_EQ(request.first_token_time, 2.0);
  EXPECT_EQ(request.last_token_time, 4.0);
  EXPECT_EQ(request.num_generation_tokens, 2);
}

}  // namespace
}  // namespace quire
