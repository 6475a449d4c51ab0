// The public engine on the bundled model: threads, aborts, lifetimes. Also what the sanitizers run.
#include "quire/engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>

#include "util/count_allocations.h"

namespace quire {
namespace {

EngineConfig demo_config() {
  EngineConfig config;
  config.model = QUIRE_DEMO_MODEL;
  config.max_model_len = 256;
  config.num_threads = 2;
  config.kv_cache_memory_bytes = 16 << 20;
  return config;
}

EngineRequest request(const std::string& prompt, int32_t max_tokens) {
  EngineRequest result;
  result.prompt = prompt;
  result.sampling_params.temperature = 0;
  result.sampling_params.max_tokens = max_tokens;
  result.sampling_params.ignore_eos = true;
  return result;
}

// How often memory of this many bytes is asked for from the request's arrival to its last step.
uint64_t num_allocations_for(EngineRequest asked, size_t min_bytes, size_t max_bytes) {
  EngineConfig config = demo_config();
  config.max_model_len = 1024;
  LLMEngine engine(config);
  num_allocations_of(min_bytes, max_bytes);
  engine.add_request(std::move(asked));
  while (engine.has_unfinished_requests()) engine.step();
  const uint64_t count = num_allocations_of(min_bytes, max_bytes);
  num_allocations_of(SIZE_MAX, 0);
  return count;
}

TEST(EngineRequestTest, APromptIsCopiedOnceForEachCompletionThatRuns) {
  if (!allocations_are_counted()) GTEST_SKIP() << "the sanitizer's operator new does not count";
  EngineRequest asked = request("", 5);
  asked.prompt_token_ids.assign(913, 20);
  asked.sampling_params.n = 2;
  asked.sampling_params.output_kind = RequestOutputKind::kDelta;
  EXPECT_EQ(num_allocations_for(std::move(asked), 913 * sizeof(int32_t), 918 * sizeof(int32_t)), 2U);
}

TEST(EngineRequestTest, ParametersAreCopiedOnceForAllCompletions) {
  if (!allocations_are_counted()) GTEST_SKIP() << "the sanitizer's operator new does not count";
  EngineRequest asked = request("Once upon a time", 5);
  asked.sampling_params.stop_token_ids.assign(113, 3);
  asked.sampling_params.n = 3;
  asked.sampling_params.output_kind = RequestOutputKind::kDelta;
  EXPECT_EQ(num_allocations_for(std::move(asked), 113 * sizeof(int32_t), 113 * sizeof(int32_t)), 1U);
}

class EngineTest : public testing::TestWithParam<bool> {
 protected:
  EngineConfig config() const {
    EngineConfig config = demo_config();
    config.async_scheduling = GetParam();
    return config;
  }
};

TEST_P(EngineTest, ThreadsSubmitAndAbortAndAllBlocksComeBack) {
  Engine engine(config());
  const auto expected = engine.generate({request("Once upon a time", 20)}).at(0).outputs.at(0).token_ids;
  ASSERT_EQ(expected.size(), 20U);
  std::vector<std::thread> threads;
  std::atomic<int> num_right{0};
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 3; ++round) {
        const auto outputs = engine.generate({request("Once upon a time", 20), request("The baker", 5 + i)});
        num_right += outputs[0].outputs[0].token_ids == expected;
      }
    });
  }
  std::mutex mutex;
  std::condition_variable changed;
  int num_finished = 0;
  std::vector<std::string> ids;
  for (int i = 0; i < 8; ++i) {
    ids.push_back(engine.add_request(request("She said", 200), [&](RequestOutput&& output) {
      const std::lock_guard lock(mutex);
      num_finished += output.finished;
      changed.notify_all();
    }));
  }
  for (const std::string& id : ids) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    engine.abort_request(id);
  }
  for (std::thread& thread : threads) thread.join();
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return num_finished == 8; });
  }
  EXPECT_EQ(num_right, 9);
  // Aborts are asynchronous: a request that follows them in the queue is finished after they took effect.
  engine.generate({request("A", 2)});
  EXPECT_EQ(engine.stats().num_free_blocks, engine.stats().num_total_blocks);
  EXPECT_EQ(engine.stats().num_running_reqs, 0);
}

// One gives up at its third token, one runs into its deadline.
TEST_P(EngineTest, WhatEndsEarlyLeavesTheOthersTokensAlone) {
  Engine engine(config());
  const std::string prompts[] = {"Once upon a time", "The baker said", "What is two and two?"};
  std::vector<std::vector<int32_t>> alone;
  for (const std::string& prompt : prompts)
    alone.push_back(engine.generate({request(prompt, 30)}).at(0).outputs.at(0).token_ids);
  OutputQueue ended;
  const auto count = ended.callback(RequestOutputKind::kFinalOnly);
  std::atomic<int> num_tokens{0};
  EngineRequest fickle = request("The lighthouse", 200);
  fickle.request_id = "fickle";
  fickle.sampling_params.output_kind = RequestOutputKind::kDelta;
  engine.add_request(std::move(fickle), [&](RequestOutput&&) {
    if (++num_tokens == 3) engine.abort_request("fickle");
  });
  EngineRequest late = request("A long day", 240);
  late.sampling_params.output_kind = RequestOutputKind::kFinalOnly;
  late.deadline_ms = 30;
  try {
    engine.add_request(std::move(late), count);
  } catch (const ResourceExhausted&) {  // where a step takes as long as that
  }
  const auto together =
      engine.generate({request(prompts[0], 30), request(prompts[1], 30), request(prompts[2], 30)});
  for (size_t i = 0; i < alone.size(); ++i) EXPECT_EQ(together[i].outputs.at(0).token_ids, alone[i]) << i;
}

TEST_P(EngineTest, DestructionDropsWhatIsUnfinished) {
  std::atomic<int> num_calls{0};
  {
    Engine engine(config());
    for (int i = 0; i < 4; ++i)
      engine.add_request(request("Once upon a time", 200), [&](RequestOutput&&) { ++num_calls; });
  }
  const int calls = num_calls;
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(num_calls, calls);  // no callback after the engine is gone
}

INSTANTIATE_TEST_SUITE_P(SyncAndAsync, EngineTest, testing::Bool());

TEST(EngineStartTest, TwoRanksAndSeveralEnginesLiveInOneProcess) {
  EngineConfig two_ranks = demo_config();
  two_ranks.tensor_parallel_size = 2;
  two_ranks.num_threads = 1;
  two_ranks.dtype = "float32";
  EngineConfig one = demo_config();
  one.dtype = "float32";
  Engine a(two_ranks), b(one);
  const auto first = a.generate({request("Once upon a time", 12)});
  const auto second = b.generate({request("Once upon a time", 12)});
  EXPECT_EQ(first[0].outputs[0].token_ids, second[0].outputs[0].token_ids);
}

TEST(EngineStartTest, AnAbortFromACallbackComesAfterWhatIsOnItsWay) {
  Engine engine(demo_config());
  std::promise<void> done;
  bool finished = false;
  EngineRequest a = request("A", 50), b = request("B", 200);
  a.request_id = "a";
  b.request_id = "b";
  a.sampling_params.output_kind = b.sampling_params.output_kind = RequestOutputKind::kDelta;
  engine.add_requests({a, b}, {[&](RequestOutput&&) { engine.abort_request("b"); },
                               [&](RequestOutput&& output) {
                                 EXPECT_FALSE(finished) << "something followed the last output";
                                 finished = output.finished;
                                 if (finished) done.set_value();
                               }});
  ASSERT_EQ(done.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
  engine.generate({request("C", 3)});
}

TEST(EngineStartTest, OneOfSeveralRequestsIsRefusedWithItsPlace) {
  Engine engine(demo_config());
  const auto nobody = [](RequestOutput&&) { FAIL() << "none of them is accepted"; };
  EngineRequest empty;
  try {
    engine.add_requests({request("A", 3), empty}, {nobody, nobody});
    FAIL() << "an empty prompt was accepted";
  } catch (const InvalidRequest& error) {
    EXPECT_EQ(error.place, 1U);
    EXPECT_NE(std::string(error.what()).find("prompt is empty"), std::string::npos) << error.what();
  }
  EXPECT_EQ(engine.generate({request("B", 3)})[0].outputs[0].token_ids.size(), 3U);
}

TEST(EngineStartTest, ACallbackThatThrowsLosesOnlyItsOwnOutput) {
  Engine engine(demo_config());
  engine.add_request(request("A", 3), [](RequestOutput&&) { throw std::runtime_error("oops"); });
  EXPECT_EQ(engine.generate({request("B", 3)})[0].outputs[0].token_ids.size(), 3U);
}

// So many that the core would begin before the last of them, came they one by one.
TEST(EngineStartTest, RequestsOfACallTakeTheSameStepsEachTime) {
  constexpr int kRequests = 500;
  EngineConfig config = demo_config();
  config.max_num_seqs = kRequests;
  config.max_num_batched_tokens = kRequests;
  config.kv_cache_memory_bytes = 64 << 20;  // a block for each
  config.async_scheduling = false;          // else a step may be scheduled before the end is known
  Engine engine(config);
  EngineRequest one = request("", 1);
  one.prompt_token_ids = {20};
  for (int round = 0; round < 5; ++round) {
    const uint64_t before = engine.stats().num_steps;
    engine.generate(std::vector<EngineRequest>(kRequests, one));
    EXPECT_EQ(engine.stats().num_steps - before, 1U) << round;
  }
}

TEST(EngineStartTest, BatchesAreAcceptedWholeOrNotAtAll) {
  Engine engine(demo_config());
  std::vector<EngineRequest> batch = {request("fine", 3), request("", 3)};
  EXPECT_THROW(engine.generate(batch), InvalidArgument);
  batch = {request("fine", 3), request("fine", 3)};
  batch[0].request_id = batch[1].request_id = "same";
  EXPECT_THROW(engine.generate(batch), InvalidArgument);
  EXPECT_EQ(engine.stats().num_steps, 0U);
  EXPECT_THROW(Engine([] {
                 EngineConfig config = demo_config();
                 config.model = "/nowhere";
                 return config;
               }()),
               InvalidArgument);
}

TEST(LLMEngineTest, StepsInTheCallersLoop) {
  LLMEngine engine(demo_config());
  engine.add_request(request("Once upon a time", 6));
  const std::string gone = engine.add_request(request("The", 100));
  size_t num_finished = 0;
  for (int step = 0; engine.has_unfinished_requests(); ++step) {
    for (const RequestOutput& output : engine.step()) num_finished += output.finished;
    if (step == 2) {
      EXPECT_TRUE(engine.abort_request(gone));
    }
  }
  EXPECT_EQ(num_finished, 2U);
  EXPECT_TRUE(engine.step().empty());
}

// As another process would: the seed that nobody can guess is not one that somebody chose.
TEST(EnginePrefixHashTest, NamesOfPrefixesDependOnTheSeed) {
  const auto stored = [](const std::string& seed) {
    EngineConfig config = demo_config();
    config.enable_kv_cache_events = true;
    config.prefix_caching_hash_seed = seed;
    LLMEngine engine(config);
    engine.add_request(request("Once upon a time there was a lighthouse that nobody knew of.", 20));
    while (engine.has_unfinished_requests()) engine.step();
    return engine.take_kv_events().at(0).block_hashes.at(0);
  };
  EXPECT_EQ(stored("shared"), stored("shared"));
  EXPECT_NE(stored("shared"), stored("other"));
  EXPECT_EQ(stored(""), stored(""));
  EXPECT_NE(stored(""), stored("shared"));
}

}  // namespace
}  // namespace quire
