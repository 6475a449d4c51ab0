#include "engine/engine_core_client.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <thread>

#include "engine/shadow_executor.h"
#include "quire/flight_recorder.h"
#include "request/make_request.h"
#include "util/count_allocations.h"

namespace quire {
namespace {

EngineConfig small_config() {
  EngineConfig config;
  config.model = QUIRE_DEMO_MODEL;
  config.max_model_len = 256;
  config.max_num_seqs = 8;
  config.max_num_batched_tokens = 64;
  config.num_threads = 1;
  config.kv_cache_memory_bytes = 16 << 20;
  return config;
}

EngineCoreRequest greedy_request(RequestId id, int32_t prompt_length, int32_t max_tokens) {
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < prompt_length; ++i) prompt.push_back(1 + (i + static_cast<int32_t>(id)) % 40);
  EngineCoreRequest request = make_request(id, std::move(prompt), max_tokens);
  request.sampling_params.edit().temperature = 0;
  return request;
}

std::unique_ptr<EngineCoreClient> shadow_client() {
  const EngineConfig config = small_config();
  return make_threaded_client(
      std::make_unique<EngineCore>(config, std::make_unique<ShadowExecutor>(16, config.max_model_len, 1)));
}

// CPU time of all threads of this process while the caller sleeps.
double cpu_seconds_in(std::chrono::milliseconds time) {
  const auto used = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  };
  const double before = used();
  std::this_thread::sleep_for(time);
  return used() - before;
}

// Waits for the last output of `num_requests` requests; returns how many tokens came.
size_t run_to_end(EngineCoreClient& client, size_t num_requests) {
  EngineCoreOutputs outputs;
  size_t num_tokens = 0;
  while (num_requests > 0 && client.get_outputs(outputs)) {
    EXPECT_EQ(outputs.engine_error, "");
    num_tokens += outputs.token_ids.size();
    for (const EngineCoreOutput& output : outputs.outputs) {
      num_requests -= output.finish_reason != FinishReason::kNone;
    }
  }
  return num_tokens;
}

TEST(ThreadedClientTest, SleepsWhileThereIsNothingToDo) {
  const auto client = shadow_client();
  client->add_requests({greedy_request(1, 5, 3)});
  EXPECT_EQ(run_to_end(*client, 1), 3U);
  EXPECT_LT(cpu_seconds_in(std::chrono::milliseconds(200)), 0.01);
}

TEST(ThreadedClientTest, RequestsThatCannotBeScheduledCostLittle) {
  const auto client = shadow_client();
  client->set_pause_state(PauseState::kPausedAll);
  client->add_requests({greedy_request(1, 5, 3)});
  EXPECT_LT(cpu_seconds_in(std::chrono::milliseconds(300)), 0.1);
  EXPECT_EQ(client->stats().num_steps, 0U);
  client->set_pause_state(PauseState::kUnpaused);
  EXPECT_EQ(run_to_end(*client, 1), 3U);
}

// A promise of the engine's own is broken in its second step.
class BrokenExecutor : public ShadowExecutor {
 public:
  using ShadowExecutor::ShadowExecutor;
  void collect(StepId step_id, ModelRunnerOutput& output) override {
    if (step_id == 2) throw InternalError("broken");
    ShadowExecutor::collect(step_id, output);
  }
};

TEST(EngineCoreClientTest, AnEngineThatFailsLeavesARecordingAndIsLeftAlone) {
  const std::filesystem::path directory =
      testing::TempDir() + "engine_core_client_test-" + std::to_string(getpid());
  std::filesystem::create_directory(directory);
  EngineConfig config = small_config();
  config.flight_recorder_dir = directory.string();
  for (const bool threaded : {false, true}) {
    auto core =
        std::make_unique<EngineCore>(config, std::make_unique<BrokenExecutor>(16, config.max_model_len, 1));
    auto client = threaded ? make_threaded_client(std::move(core)) : make_inline_client(std::move(core));
    client->add_requests({greedy_request(1, 8, 8)});
    EngineCoreOutputs outputs;
    while (client->get_outputs(outputs) && outputs.engine_error.empty()) {
    }
    EXPECT_EQ(outputs.engine_error, "broken");
    EXPECT_THROW(client->add_requests({greedy_request(2, 8, 8)}), ResourceExhausted);
    EXPECT_FALSE(client->reset_prefix_cache());
    EXPECT_THROW(client->call([](EngineCore&) { ADD_FAILURE() << "it has ended"; }), ResourceExhausted);
    EXPECT_EQ(client->seconds_since_progress(), 0.0);
    client->abort_requests({1});
  }
  int num_recordings = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const ReplayReport report = replay_recording(entry.path().string());
    EXPECT_EQ(report.divergence, "");
    EXPECT_EQ(report.num_steps, 2U);
    ++num_recordings;
  }
  EXPECT_EQ(num_recordings, 2);
  std::filesystem::remove_all(directory);
}

// Its second step does not come back before it is let go.
class HangingExecutor : public ShadowExecutor {
 public:
  HangingExecutor(std::shared_future<void> let_go, int32_t max_in_flight_steps = 1)
      : ShadowExecutor(16, 256, max_in_flight_steps), let_go_(std::move(let_go)) {}
  void collect(StepId step_id, ModelRunnerOutput& output) override {
    if (step_id == 2) let_go_.wait();
    ShadowExecutor::collect(step_id, output);
  }

 private:
  std::shared_future<void> let_go_;
};

TEST(EngineCoreClientTest, AStepThatHangsShowsAndAnIdleEngineMakesProgress) {
  for (const bool threaded : {false, true}) {
    std::promise<void> let_go;
    auto core = std::make_unique<EngineCore>(small_config(),
                                             std::make_unique<HangingExecutor>(let_go.get_future().share()));
    const auto client =
        threaded ? make_threaded_client(std::move(core)) : make_inline_client(std::move(core));
    EXPECT_EQ(client->seconds_since_progress(), 0.0);
    client->add_requests({greedy_request(1, 5, 3)});
    std::thread runs([&] { EXPECT_EQ(run_to_end(*client, 1), 3U); });
    while (client->seconds_since_progress() < 0.1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    let_go.set_value();
    runs.join();
    while (client->seconds_since_progress() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST(EngineCoreClientTest, RequestsThatComeTogetherAreInTheSameFirstStep) {
  for (int round = 0; round < 50; ++round) {
    const auto client = make_threaded_client(
        std::make_unique<EngineCore>(small_config(), std::make_unique<ShadowExecutor>(16, 256, 2)));
    std::vector<EngineCoreRequest> together;
    for (RequestId id = 1; id <= 4; ++id) together.push_back(greedy_request(id, 2, 3));
    client->add_requests(std::move(together));
    EngineCoreOutputs outputs;
    do client->get_outputs(outputs);
    while (outputs.outputs.empty());
    EXPECT_EQ(outputs.outputs.size(), 4U);
  }
}

TEST(EngineCoreClientTest, ACallFindsNoStepInFlightAndChangesNoToken) {
  for (const bool threaded : {false, true}) {
    auto core = std::make_unique<EngineCore>(small_config(), std::make_unique<ShadowExecutor>(16, 256, 2));
    const auto client =
        threaded ? make_threaded_client(std::move(core)) : make_inline_client(std::move(core));
    for (RequestId id = 1; id <= 4; ++id) client->add_requests({greedy_request(id, 5, 40)});
    EngineCoreOutputs outputs;
    size_t num_tokens = 0, num_finished = 0;
    for (int i = 0; num_finished < 4; ++i) {
      if (i % 3 == 1) {
        client->call([](EngineCore& core) { EXPECT_FALSE(core.has_steps_in_flight()); });
        EXPECT_THROW(client->call([](EngineCore&) { throw InvalidArgument("no"); }), InvalidArgument);
      }
      client->get_outputs(outputs);
      num_tokens += outputs.token_ids.size();
      for (const EngineCoreOutput& output : outputs.outputs)
        num_finished += output.finish_reason != FinishReason::kNone;
    }
    EXPECT_EQ(num_tokens, 160U);
    client->close();
    EXPECT_THROW(client->call([](EngineCore&) {}), ResourceExhausted);
  }
}

class CountingExecutor : public ShadowExecutor {
 public:
  explicit CountingExecutor(std::atomic<int>& num_in_flight)
      : ShadowExecutor(16, 256, 2), num_in_flight_(num_in_flight) {}
  void launch(const SchedulerOutput& scheduler_output) override {
    ++num_in_flight_;
    ShadowExecutor::launch(scheduler_output);
  }
  void collect(StepId step_id, ModelRunnerOutput& output) override {
    ShadowExecutor::collect(step_id, output);
    --num_in_flight_;
  }

 private:
  std::atomic<int>& num_in_flight_;
};

// What workers call in a step may be gone when the engine is: Python's processors.
TEST(EngineCoreClientTest, NoStepIsInFlightWhenItIsClosed) {
  for (const bool threaded : {false, true}) {
    std::atomic<int> num_in_flight = 0;
    auto core =
        std::make_unique<EngineCore>(small_config(), std::make_unique<CountingExecutor>(num_in_flight));
    const auto client =
        threaded ? make_threaded_client(std::move(core)) : make_inline_client(std::move(core));
    client->add_requests({greedy_request(1, 5, 200)});
    EngineCoreOutputs outputs;
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(client->get_outputs(outputs));
    client->close();
    EXPECT_EQ(num_in_flight, 0) << threaded;
  }
}

TEST(ThreadedClientTest, AnAbortWakesWhoeverWaits) {
  const auto client = shadow_client();
  client->abort_requests({7});
  EngineCoreOutputs outputs;
  outputs.token_ids = {1, 2};
  EXPECT_TRUE(client->get_outputs(outputs));
  EXPECT_TRUE(outputs.token_ids.empty());
}

TEST(ThreadedClientTest, StepsThatWaitCanBeTakenWithoutWaiting) {
  const auto client = shadow_client();
  EngineCoreOutputs outputs;
  EXPECT_FALSE(client->try_get_outputs(outputs));
  client->add_requests({greedy_request(1, 5, 3)});
  size_t num_tokens = 0;
  while (num_tokens < 3) {
    if (client->try_get_outputs(outputs)) num_tokens += outputs.token_ids.size();
  }
  EXPECT_FALSE(client->try_get_outputs(outputs));
  client->close();
  EXPECT_FALSE(client->try_get_outputs(outputs));
}

// A prompt takes several steps before its first token, and an abort leaves nothing to compute: both are told
// only when asked for.
TEST(ThreadedClientTest, ReportsStatsOfStepsWithoutOutputs) {
  const EngineConfig config = small_config();
  const auto client = make_threaded_client(
      [&](const auto&) {
        return std::make_unique<EngineCore>(config, std::make_unique<ShadowExecutor>(16, 256, 1));
      },
      /*reports_stats=*/true);
  client->set_pause_state(PauseState::kPausedAll);
  client->add_requests({greedy_request(1, 200, 50)});
  EngineCoreOutputs outputs;
  ASSERT_TRUE(client->get_outputs(outputs));
  EXPECT_EQ(outputs.scheduler_stats.num_waiting_reqs, 1);
  client->abort_requests({1});
  while (outputs.scheduler_stats.num_waiting_reqs > 0) ASSERT_TRUE(client->get_outputs(outputs));
  EXPECT_FALSE(client->try_get_outputs(outputs)) << "once";
  client->add_requests({greedy_request(2, 200, 50)});
  client->set_pause_state(PauseState::kUnpaused);
  do ASSERT_TRUE(client->get_outputs(outputs));
  while (outputs.scheduler_stats.num_running_reqs == 0);
  EXPECT_TRUE(outputs.outputs.empty());
  while (outputs.outputs.empty()) ASSERT_TRUE(client->get_outputs(outputs));
  EXPECT_GT(outputs.timestamp, outputs.outputs[0].first_scheduled_time);
}

TEST(ThreadedClientTest, AWakeMayComeUntilTheCoreIsGone) {
  std::function<void()> wake;
  {
    const EngineConfig config = small_config();
    const auto client = make_threaded_client([&](std::function<void()> of_client) {
      wake = std::move(of_client);
      SchedulerParts parts;
      parts.wake = wake;
      return std::make_unique<EngineCore>(config, std::make_unique<ShadowExecutor>(16, 256, 1),
                                          std::move(parts));
    });
    std::thread other([&] {
      for (int i = 0; i < 1000; ++i) wake();
    });
    client->add_requests({greedy_request(1, 5, 20)});
    EXPECT_EQ(run_to_end(*client, 1), 20U);
    other.join();
  }
}

class SteadyStateTest : public testing::TestWithParam<bool> {};

// Engine core, scheduler, executor, worker and the queues between them, on all their threads.
TEST_P(SteadyStateTest, AStepAllocatesNothing) {
  if (!allocations_are_counted()) GTEST_SKIP() << "the sanitizer's operator new";
  EngineConfig config = small_config();
  config.async_scheduling = GetParam();
  const uint64_t at_start = num_allocations();
  const auto client = make_threaded_client(std::make_unique<EngineCore>(config, make_local_executor(config)));
  EXPECT_GT(num_allocations(), at_start + 100) << "nothing is counted";
  for (RequestId id = 1; id <= 4; ++id) client->add_requests({greedy_request(id, 10, 220)});
  EngineCoreOutputs outputs;
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(client->get_outputs(outputs));
  // A queue grows once when this thread is kept from reading, so the best of several stretches counts. In
  // each, every request enters a block.
  uint64_t fewest = 1000;
  for (int stretch = 0; stretch < 7; ++stretch) {
    const uint64_t before = num_allocations();
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(client->get_outputs(outputs));
    fewest = std::min(fewest, num_allocations() - before);
  }
  EXPECT_EQ(fewest, 0U);
}

INSTANTIATE_TEST_SUITE_P(SyncAndAsync, SteadyStateTest, testing::Bool());

}  // namespace
}  // namespace quire
