// Every function of an engine from several threads at once: what the thread sanitizer is to see.
// tools/drop_locks.py says which locks these tests would miss.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <functional>
#include <future>
#include <thread>

#include "kv_cache/kv_arena.h"
#include "quire/engine.h"

namespace quire {
namespace {

EngineConfig small_config() {
  EngineConfig config;
  config.model = QUIRE_DEMO_MODEL;
  config.max_model_len = 128;
  config.num_threads = 1;
  config.kv_cache_memory_bytes = 16 << 20;
  config.enable_kv_cache_events = true;
  return config;
}

EngineRequest ask(int32_t first_token, int32_t max_tokens) {
  EngineRequest result;
  result.prompt_token_ids.assign(20, 10 + first_token);
  result.sampling_params.max_tokens = max_tokens;
  result.sampling_params.ignore_eos = true;
  return result;
}

// Each on a thread of its own, `rounds` times, all beginning together. An engine that has ended, is draining
// or has gone says so.
void hammer(int rounds, const std::vector<std::function<void(int round)>>& actions) {
  std::promise<void> start;
  const std::shared_future<void> started = start.get_future().share();
  std::vector<std::thread> threads;
  for (const auto& action : actions) {
    threads.emplace_back([&action, started, rounds] {
      started.wait();
      for (int round = 0; round < rounds; ++round) {
        try {
          action(round);
        } catch (const ResourceExhausted&) {
          std::this_thread::yield();
        }
      }
    });
  }
  start.set_value();
  for (std::thread& thread : threads) thread.join();
}

std::string recording_path(const char* name) {
  return testing::TempDir() + "quire_engine_threads_test-" + name + std::to_string(getpid()) + ".rec";
}

// What both kinds of engine offer.
std::vector<std::function<void(int)>> common_actions(EngineBase& engine, const std::string& recording) {
  static constexpr const char* kMessages = R"([{"role": "user", "content": "Hello"}])";
  const auto render = [&engine](int round) {
    const std::string which = round % 2 == 0 ? "first" : "second";
    EXPECT_EQ(engine.apply_chat_template(kMessages, "{}", which + " {{ messages[0].content }}"),
              which + " Hello");
  };
  return {render,
          render,
          [&engine](int) { EXPECT_EQ(engine.dead_error(), ""); },
          [&engine](int) { EXPECT_GT(engine.stats().num_total_blocks, 0); },
          [&engine](int) { (void)engine.take_kv_events(); },
          [&engine](int) { (void)engine.reset_prefix_cache(); },
          [&engine](int round) {
            engine.pause(round % 2 == 0 ? PauseMode::kKeep : PauseMode::kWait);
            engine.resume();
          },
          [&engine](int) { engine.resume(); },
          [&engine, recording](int round) {
            if (round % 8 == 0) engine.dump_flight_recorder(recording);
          }};
}

TEST(EngineThreadsTest, AnEngineIsUsedFromEverywhere) {
  const std::string recording = recording_path("a");
  Engine engine(small_config());
  auto actions = common_actions(engine, recording);
  for (int i = 0; i < 2; ++i) {
    actions.emplace_back([&engine, i](int round) {
      if (round >= 20) return;
      EXPECT_EQ(engine.generate({ask(i, 3)}).at(0).outputs.at(0).token_ids.size(), 3U);
    });
  }
  actions.emplace_back([&engine](int round) {
    if (round < 20) engine.abort_request(engine.add_request(ask(5, 50), {}));
  });
  actions.emplace_back([&engine](int) { (void)engine.drain(std::chrono::milliseconds(1)); });
  hammer(60, actions);
  engine.resume();
  EXPECT_EQ(engine.generate({ask(1, 4)}).at(0).outputs.at(0).token_ids.size(), 4U);
  std::remove(recording.c_str());
}

TEST(EngineThreadsTest, AnLLMEngineIsUsedFromEverywhere) {
  const std::string recording = recording_path("b");
  LLMEngine engine(small_config());
  auto actions = common_actions(engine, recording);
  std::atomic<int> num_finished{0};
  const auto step = [&](int) {
    for (const RequestOutput& output : engine.step()) num_finished += output.finished;
  };
  actions.emplace_back(step);
  actions.emplace_back(step);
  actions.emplace_back([&engine](int) { (void)engine.has_unfinished_requests(); });
  for (int i = 0; i < 2; ++i)
    actions.emplace_back([&engine, i](int round) {
      if (round % 4 == 0) engine.add_request(ask(i, 3));
    });
  actions.emplace_back([&engine](int round) {
    if (round % 4 == 0) engine.abort_request(engine.add_request(ask(5, 50)));
  });
  hammer(60, actions);
  engine.resume();
  while (engine.has_unfinished_requests()) step(0);
  EXPECT_EQ(num_finished, 45);
  std::remove(recording.c_str());
}

TEST(EngineThreadsTest, EnginesAreShutDownFromEverywhere) {
  for (int round = 0; round < 6; ++round) {
    Engine engine(small_config());
    LLMEngine inline_engine(small_config());
    const auto shut_down = [&](int) {
      engine.shutdown();
      inline_engine.shutdown();
    };
    hammer(2, {shut_down, shut_down, shut_down, [&](int) { (void)engine.reset_prefix_cache(); },
               [&](int) { engine.add_request(ask(1, 20), {}); }, [&](int) { (void)inline_engine.step(); },
               [&](int) { inline_engine.add_request(ask(1, 20)); }});
    EXPECT_THROW(engine.generate({ask(1, 1)}), ResourceExhausted);
    EXPECT_THROW(inline_engine.step(), ResourceExhausted);
  }
}

TEST(EngineThreadsTest, TheEndOfAnEngineIsSeenFromEverywhere) {
  EngineConfig config = small_config();
  config.kv_cache_memory_bytes = 0;
  config.kv_arena = make_kv_arena(16 << 20);
  Engine engine(config);
  // A neighbour in the arena that breaks when it is asked for memory takes the scheduler with it.
  KVArena::Member neighbour(config.kv_arena, 0, [] { throw InternalError("the neighbour broke"); });
  ASSERT_TRUE(neighbour.take(neighbour.bytes_available()));
  const auto watch = [&](int) {
    while (engine.dead_error().empty()) (void)config.kv_arena->bytes_held();
  };
  hammer(1,
         {watch, watch, [&](int) { engine.generate({ask(1, 100), ask(2, 100), ask(3, 100), ask(4, 100)}); }});
  EXPECT_EQ(engine.dead_error(), "the neighbour broke");
}

}  // namespace
}  // namespace quire
