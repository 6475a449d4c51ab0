// What an engine tells its metric sink and its outputs, with the bundled model.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <csignal>
#include <future>
#include <iostream>
#include <mutex>
#include <numeric>
#include <thread>

#include "engine/fake_metric_sink.h"
#include "kv_cache/kv_arena.h"
#include "quire/engine.h"
#include "quire/prometheus.h"

namespace quire {
namespace {

struct EngineMetricsTest : testing::TestWithParam<bool> {
  EngineMetricsTest() {
    config.model = QUIRE_DEMO_MODEL;
    config.max_model_len = 256;
    config.num_threads = 1;
    config.kv_cache_memory_bytes = 16 << 20;
    config.async_scheduling = GetParam();
    config.metric_sink = sink;
  }
  const std::shared_ptr<FakeMetricSink> sink = std::make_shared<FakeMetricSink>();
  EngineConfig config;
};

EngineRequest request(int32_t num_prompt_tokens, int32_t max_tokens) {
  EngineRequest result;
  result.prompt_token_ids.resize(static_cast<size_t>(num_prompt_tokens));
  std::iota(result.prompt_token_ids.begin(), result.prompt_token_ids.end(), 10 + num_prompt_tokens);
  result.sampling_params.temperature = 0;
  result.sampling_params.max_tokens = max_tokens;
  result.sampling_params.ignore_eos = true;
  return result;
}

void expect_idle(const FakeMetricSink& sink) {
  const auto busy = [&sink] {
    return sink.gauge(Metric::kNumRequestsRunning) + sink.gauge(Metric::kNumRequestsWaiting) +
           sink.gauge(Metric::kKVCacheUsage);
  };
  for (int i = 0; i < 2000 && busy() > 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(busy(), 0.0);
}

// Everything is known when the last callback is called.
TEST_P(EngineMetricsTest, CountsAreExact) {
  Engine engine(config);
  engine.generate({request(5, 4), request(7, 6), request(9, 1)});
  EXPECT_EQ(sink->counter(Metric::kPromptTokens), 21.0);
  EXPECT_EQ(sink->counter(Metric::kGenerationTokens), 11.0);
  EXPECT_EQ(sink->counter(Metric::kPrefixCacheQueries), 21.0);
  EXPECT_EQ(sink->finished("length"), 3.0);
  EXPECT_EQ(sink->count(Metric::kTimeToFirstToken), 3U);
  EXPECT_EQ(sink->count(Metric::kInterTokenLatency), 8U);
  for (const Metric metric : {Metric::kE2ERequestLatency, Metric::kRequestQueueTime,
                              Metric::kRequestPrefillTime, Metric::kRequestDecodeTime})
    EXPECT_EQ(sink->count(metric), 3U);
  EXPECT_EQ(sink->count(Metric::kRequestPromptTokens), 3U);
  EXPECT_EQ(sink->sum(Metric::kRequestPromptTokens), 21.0);
  EXPECT_EQ(sink->sum(Metric::kRequestGenerationTokens), 11.0);
  expect_idle(*sink);
  EXPECT_EQ(engine.dead_error(), "");
}

TEST_P(EngineMetricsTest, APromptThatIsCachedIsAHit) {
  Engine engine(config);
  engine.generate({request(40, 2)});
  const auto outputs = engine.generate({request(40, 2)});
  EXPECT_EQ(sink->counter(Metric::kPrefixCacheQueries), 80.0);
  EXPECT_EQ(sink->counter(Metric::kPrefixCacheHits), outputs[0].num_cached_tokens);
  EXPECT_EQ(outputs[0].num_cached_tokens, 32);
  EXPECT_EQ(sink->counter(Metric::kPromptTokens), 80.0);
  EXPECT_EQ(sink->counter(Metric::kPromptTokensCached), 32.0);
  EXPECT_EQ(sink->sum(Metric::kRequestPrefillKVComputedTokens), 48.0);
}

TEST_P(EngineMetricsTest, EachCompletionCounts) {
  Engine engine(config);
  EngineRequest two = request(5, 4);
  two.sampling_params.n = 2;
  two.sampling_params.temperature = 1;
  const auto output = engine.generate({two}).at(0);
  EXPECT_EQ(sink->finished("length"), 2.0);
  EXPECT_EQ(sink->counter(Metric::kPromptTokens), 10.0);
  EXPECT_EQ(sink->counter(Metric::kGenerationTokens), 8.0);
  EXPECT_EQ(sink->count(Metric::kTimeToFirstToken), 2U);
  EXPECT_EQ(sink->count(Metric::kRequestParamsN), 1U) << "this is of the whole request, and so is the next";
  EXPECT_EQ(sink->sum(Metric::kRequestParamsN), 2.0);
  EXPECT_EQ(sink->sum(Metric::kRequestMaxNumGenerationTokens), 4.0);
  EXPECT_EQ(output.metrics.num_generation_tokens, 8);
}

TEST_P(EngineMetricsTest, StopsAndDeadlinesAreTold) {
  Engine engine(config);
  EngineRequest expires = request(6, 200);
  expires.deadline_ms = 1;
  std::promise<void> expired;
  engine.pause();
  engine.add_request(expires, [&](RequestOutput&& output) {
    if (output.finished) expired.set_value();
  });
  expired.get_future().wait();
  engine.resume();
  EngineRequest stops = request(5, 50);
  stops.sampling_params.stop_token_ids = {
      engine.generate({request(5, 3)}).at(0).outputs.at(0).token_ids.at(2)};
  engine.generate({stops});
  EXPECT_EQ(sink->finished("length"), 1.0);
  EXPECT_EQ(sink->finished("stop"), 1.0);
  EXPECT_EQ(sink->finished("abort"), 1.0);
  EXPECT_EQ(sink->count(Metric::kE2ERequestLatency), 3U);
  EXPECT_EQ(sink->count(Metric::kRequestMaxNumGenerationTokens), 3U);
  EXPECT_EQ(sink->count(Metric::kRequestQueueTime), 2U) << "one was never scheduled";
  expect_idle(*sink);
}

TEST_P(EngineMetricsTest, AfterAnAbortTheGaugesReturnToZero) {
  Engine engine(config);
  std::promise<void> begun, ended;
  bool has_begun = false;
  int32_t num_tokens = 0;
  EngineRequest long_one = request(20, 230);
  long_one.request_id = "long";
  long_one.sampling_params.output_kind = RequestOutputKind::kDelta;
  engine.add_request(long_one, [&](RequestOutput&& output) {
    if (!std::exchange(has_begun, true)) begun.set_value();
    for (const auto& completion : output.outputs)
      num_tokens += static_cast<int32_t>(completion.token_ids.size());
    EXPECT_EQ(output.metrics.num_generation_tokens, num_tokens);
    if (output.finished) ended.set_value();
  });
  begun.get_future().wait();
  EXPECT_TRUE(engine.abort_request("long"));
  ended.get_future().wait();
  EXPECT_EQ(sink->finished("abort"), 1.0);
  EXPECT_EQ(sink->counter(Metric::kGenerationTokens), num_tokens);
  EXPECT_EQ(sink->largest(Metric::kNumRequestsRunning), 1.0);
  EXPECT_GT(sink->largest(Metric::kKVCacheUsage), 0.0);
  expect_idle(*sink);
}

TEST_P(EngineMetricsTest, WithoutThreadsEachStepTells) {
  LLMEngine engine(config);
  EngineRequest gone = request(20, 230);
  gone.request_id = "gone";
  engine.add_request(gone);
  engine.add_request(request(5, 3));
  while (sink->counter(Metric::kGenerationTokens) < 4) engine.step();
  EXPECT_EQ(sink->gauge(Metric::kNumRequestsRunning), 2.0);
  EXPECT_TRUE(engine.abort_request("gone"));
  while (engine.has_unfinished_requests()) engine.step();
  EXPECT_EQ(sink->finished("abort"), 1.0);
  EXPECT_EQ(sink->finished("length"), 1.0);
  EXPECT_EQ(sink->gauge(Metric::kNumRequestsRunning), 0.0);
  EXPECT_EQ(sink->gauge(Metric::kKVCacheUsage), 0.0);
}

TEST_P(EngineMetricsTest, APreemptionIsCountedAndDoesNotStartTheClockAgain) {
  config.kv_cache_memory_bytes = 0;
  config.max_model_len = 64;
  config.num_gpu_blocks_override = 7;  // six to use; each request comes to need four
  config.max_num_seqs = 2;
  Engine engine(config);
  const auto outputs = engine.generate({request(16, 48), request(17, 47)});
  EXPECT_GT(engine.stats().num_preemptions, 0U);
  EXPECT_EQ(sink->counter(Metric::kNumPreemptions), static_cast<double>(engine.stats().num_preemptions));
  EXPECT_EQ(sink->counter(Metric::kPromptTokens), 33.0);
  EXPECT_EQ(sink->counter(Metric::kGenerationTokens), 95.0);
  // Both requests began in the first steps: whoever was preempted was first scheduled before the other's
  // second half.
  EXPECT_LE(outputs[1].metrics.first_scheduled_time, outputs[0].metrics.last_token_time);
  EXPECT_LE(outputs[1].metrics.first_token_time, outputs[0].metrics.last_token_time);
  expect_idle(*sink);
}

TEST_P(EngineMetricsTest, TimingsOfEachOutputAreInOrder) {
  Engine engine(config);
  std::promise<void> done;
  double last_token_time = 0.0;
  EngineRequest asked = request(30, 12);
  asked.sampling_params.n = 2;
  asked.sampling_params.output_kind = RequestOutputKind::kCumulative;
  engine.add_request(asked, [&](RequestOutput&& output) {
    const RequestMetrics& m = output.metrics;
    EXPECT_GT(m.arrival_time, 0.0);
    EXPECT_LE(m.arrival_time, m.first_scheduled_time);
    EXPECT_LE(m.first_scheduled_time, m.first_token_time);
    EXPECT_LE(m.first_token_time, m.last_token_time);
    EXPECT_LT(last_token_time, m.last_token_time);
    last_token_time = m.last_token_time;
    size_t num_tokens = 0;
    for (const auto& completion : output.outputs) num_tokens += completion.token_ids.size();
    EXPECT_EQ(static_cast<size_t>(m.num_generation_tokens), num_tokens);
    if (output.finished) done.set_value();
  });
  done.get_future().wait();
}

TEST_P(EngineMetricsTest, ASinkThatThrowsDoesNotHurt) {
  struct Broken final : MetricSink {
    void add(Metric, size_t, double) override { throw std::runtime_error("add"); }
    void set(Metric, double) override { throw std::runtime_error("set"); }
    void observe(Metric, double, uint64_t) override { throw std::runtime_error("observe"); }
  };
  config.metric_sink = std::make_shared<Broken>();
  Engine engine(config);
  EXPECT_EQ(engine.generate({request(5, 9)})[0].outputs[0].token_ids.size(), 9U);
  EXPECT_EQ(engine.dead_error(), "");
}

TEST_P(EngineMetricsTest, PrometheusReadsWhileTheEngineRuns) {
  const auto metrics = std::make_shared<PrometheusMetrics>(PrometheusOptions{.model_name = "demo"});
  const auto shows = [&](const std::string& line) {
    return metrics->render().find("quire:" + line) != std::string::npos;
  };
  config.metric_sink = metrics;
  {
    Engine engine(config);
    EXPECT_TRUE(shows(R"(cache_config_info{model_name="demo",engine="0",block_size="16",)"));
    EXPECT_THROW(Engine second(config), InvalidArgument);
    std::atomic<bool> done = false;
    std::thread reader([&] {
      while (!done) EXPECT_TRUE(shows("num_requests_running{"));
    });
    engine.generate({request(5, 30), request(7, 30)});
    done = true;
    reader.join();
    EXPECT_TRUE(shows("generation_tokens_total{model_name=\"demo\",engine=\"0\"} 60\n"));
    EXPECT_FALSE(shows("num_kv_cache_blocks{model_name=\"demo\",engine=\"0\"} 0\n"));
  }
  EXPECT_TRUE(shows("num_kv_cache_blocks{model_name=\"demo\",engine=\"0\"} 0\n"));
  Engine next(config);
}

// What a neighbour in the arena holds is none of this engine's usage, whenever it takes it.
TEST_P(EngineMetricsTest, UsageOfASharedArenaIsWhatThisEnginesRequestsHold) {
  config.kv_cache_memory_bytes = 0;
  config.max_num_seqs = 4;
  config.kv_arena = make_kv_arena(16 << 20);
  Engine engine(config);
  engine.generate({request(40, 4)});
  expect_idle(*sink);
  const double num_blocks = sink->gauge(Metric::kNumKVCacheBlocks);
  EXPECT_GT(num_blocks, 10.0);
  KVArena::Member neighbour(config.kv_arena, 0, [] {});
  ASSERT_TRUE(neighbour.take(neighbour.bytes_available() / 2));
  // A gauge is told now and then: of a machine that is busy perhaps not while so short a request runs.
  for (int i = 0; i < 200 && sink->largest(Metric::kNumKVCacheBlocksUsed) < 3.0; ++i) {
    engine.generate({request(41, 4)});
    expect_idle(*sink);
  }
  EXPECT_GE(sink->largest(Metric::kNumKVCacheBlocksUsed), 3.0);
  EXPECT_LT(sink->largest(Metric::kKVCacheUsage), 0.4);
  EXPECT_EQ(sink->gauge(Metric::kNumKVCacheBlocksUsed), 0.0);
  EXPECT_EQ(sink->gauge(Metric::kNumKVCacheBlocks), num_blocks);
  EXPECT_EQ(engine.stats().kv_cache_usage, 0.0);
}

// A neighbour in the arena that breaks when it is asked for memory takes the scheduler with it.
TEST_P(EngineMetricsTest, AnEngineThatEndsSaysWhyAndItsRequestsAreErrors) {
  config.kv_cache_memory_bytes = 0;
  config.max_num_seqs = 4;
  config.kv_arena = make_kv_arena(16 << 20);
  Engine engine(config);
  KVArena::Member neighbour(config.kv_arena, 0, [] { throw InternalError("the neighbour broke"); });
  ASSERT_TRUE(neighbour.take(neighbour.bytes_available()));
  EXPECT_EQ(engine.dead_error(), "");
  engine.pause();  // until all are there
  std::promise<void> all_ended;
  int num_ended = 0;
  for (int32_t i = 0; i < 4; ++i) {
    engine.add_request(request(100 + i, 100), [&](RequestOutput&& output) {
      if (!output.finished) return;
      EXPECT_EQ(output.outputs[0].finish_reason, FinishReason::kError);
      EXPECT_EQ(output.outputs[0].error, "the neighbour broke");
      if (++num_ended == 4) all_ended.set_value();
    });
  }
  engine.resume();
  all_ended.get_future().wait();
  EXPECT_EQ(engine.dead_error(), "the neighbour broke");
  EXPECT_THROW(engine.generate({request(5, 5)}), ResourceExhausted);
  EXPECT_EQ(sink->finished("error"), 4.0);
  expect_idle(*sink);
}

// In a process of its own.
void die_and_wait(EngineConfig config) {
  config.kv_cache_memory_bytes = 0;
  config.kv_arena = make_kv_arena(16 << 20);
  config.exit_on_dead = true;
  Engine engine(config);
  KVArena::Member neighbour(config.kv_arena, 0, [] { throw InternalError("the neighbour broke"); });
  if (!neighbour.take(neighbour.bytes_available())) std::exit(1);
  engine.pause();
  for (int32_t i = 0; i < 4; ++i) {
    engine.add_request(request(100 + i, 100), [i](RequestOutput&& output) {
      if (output.finished) std::cerr << "told " << i << ": " << output.outputs[0].error << "\n";
    });
  }
  engine.resume();
  std::this_thread::sleep_for(std::chrono::minutes(10));
  std::exit(2);
}

TEST_P(EngineMetricsTest, TheProcessEndsWithItsEngineWhenAskedTo) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(die_and_wait(config), testing::KilledBySignal(SIGTERM), "told 3: the neighbour broke");
}

// While the first callback dawdles, the engine finishes: the rest comes in deliveries of up to 64 steps.
TEST_P(EngineMetricsTest, ASlowConsumerGetsStepsMerged) {
  Engine engine(config);
  EngineRequest asked = request(20, 150);
  asked.sampling_params.logprobs = 1;
  const CompletionOutput expected = engine.generate({asked}).at(0).outputs.at(0);
  for (const auto kind : {RequestOutputKind::kDelta, RequestOutputKind::kCumulative}) {
    asked.sampling_params.output_kind = kind;
    std::promise<void> engine_done, done;
    std::vector<CompletionOutput> received;
    const uint64_t num_before = engine.stats().num_generation_tokens;
    engine.add_request(asked, [&](RequestOutput&& output) {
      if (received.empty()) engine_done.get_future().wait();
      received.push_back(std::move(output.outputs.at(0)));
      if (output.finished) done.set_value();
    });
    while (engine.stats().num_generation_tokens < num_before + 150)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    engine_done.set_value();
    done.get_future().wait();
    EXPECT_GE(received.size(), 2U);
    EXPECT_LE(received.size(), 30U) << "of 150 steps";
    CompletionOutput all;
    for (const CompletionOutput& part : received) {
      EXPECT_EQ(part.finished(), &part == &received.back());
      if (kind == RequestOutputKind::kCumulative) all = CompletionOutput();
      all.text += part.text;
      all.token_ids.insert(all.token_ids.end(), part.token_ids.begin(), part.token_ids.end());
      all.logprobs.insert(all.logprobs.end(), part.logprobs.begin(), part.logprobs.end());
    }
    EXPECT_EQ(all.text, expected.text);
    EXPECT_EQ(all.token_ids, expected.token_ids);
    EXPECT_EQ(all.logprobs, expected.logprobs);
    EXPECT_EQ(received.back().cumulative_logprob, expected.cumulative_logprob);
    EXPECT_EQ(received.back().finish_reason, FinishReason::kLength);
  }
  EXPECT_EQ(sink->count(Metric::kInterTokenLatency), 3U * 149) << "merged or not, each step counts";
}

INSTANTIATE_TEST_SUITE_P(SyncAndAsync, EngineMetricsTest, testing::Bool());

}  // namespace
}  // namespace quire
