// Engines that share one KV arena: memory goes where the load is, and what is read is what was written.
#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "engine/engine_core_client.h"
#include "engine/shadow_executor.h"
#include "kv_cache/kv_arena.h"
#include "request/make_request.h"
#include "util/error_of.h"

namespace quire {
namespace {

constexpr int32_t kArenaBlockSize = 16;
constexpr int32_t kMaxModelLen = 200;  // 13 blocks
constexpr int64_t kBlockBytes = 4096;

EngineConfig sharing(const std::shared_ptr<KVArena>& arena) {
  EngineConfig config;
  config.model = "shadow";
  config.block_size = kArenaBlockSize;
  config.max_num_seqs = 8;
  config.max_num_batched_tokens = 256;
  config.kv_arena = arena;
  return config;
}

std::unique_ptr<ShadowExecutor> make_executor(int32_t max_in_flight = 1) {
  KVCacheSpec spec = shadow_spec(kArenaBlockSize);
  spec.page_bytes = kBlockBytes;  // a block is an extent
  return std::make_unique<ShadowExecutor>(std::vector<KVCacheSpec>{spec}, kMaxModelLen, max_in_flight);
}

EngineCoreRequest numbered_request(RequestId id, int32_t num_prompt_tokens, int32_t max_tokens) {
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < num_prompt_tokens; ++i)
    prompt.push_back((i * 7 + static_cast<int32_t>(id)) % kShadowVocabSize);
  return make_request(id, std::move(prompt), max_tokens);
}

struct EngineOfArena {
  explicit EngineOfArena(const std::shared_ptr<KVArena>& arena) {
    auto owned = make_executor();
    executor = owned.get();
    core = std::make_unique<EngineCore>(sharing(arena), std::move(owned));
  }
  void add(RequestId id, int32_t num_prompt_tokens, int32_t max_tokens) {
    EngineCoreRequest request = numbered_request(id, num_prompt_tokens, max_tokens);
    expected[id] = shadow_output(*request.prompt_token_ids, max_tokens, true);
    core->add_request(std::move(request));
  }
  void step() {
    EngineCoreOutputs outputs;
    core->step_once(outputs);
    for (const EngineCoreOutput& output : outputs.outputs) {
      const auto ids = outputs.new_token_ids(output);
      produced[output.request_id].insert(produced[output.request_id].end(), ids.begin(), ids.end());
    }
  }
  ShadowExecutor* executor;
  std::unique_ptr<EngineCore> core;
  std::map<RequestId, std::vector<int32_t>> expected, produced;
};

// Steps both engines in turn until neither has anything to do.
void run(EngineOfArena& a, EngineOfArena& b) {
  for (int step = 0; a.core->has_unfinished_requests() || b.core->has_unfinished_requests(); ++step) {
    ASSERT_LT(step, 5000);
    a.step();
    b.step();
  }
  EXPECT_EQ(a.produced, a.expected);
  EXPECT_EQ(b.produced, b.expected);
}

TEST(KVArenaEnginesTest, WhatOneHasCachedIsLentToTheOtherWhenItHasLoad) {
  const auto arena = std::make_shared<KVArena>(41 * kBlockBytes);
  EngineOfArena a(arena);
  EngineOfArena b(arena);
  const int32_t num_free = b.core->scheduler().stats().num_free_blocks;
  for (RequestId id = 1; id <= 6; ++id) a.add(id, 100, 20);
  run(a, b);
  EXPECT_GE(arena->bytes_held(), 26 * kBlockBytes);  // all but what b is sure of
  // Four times four blocks at once are more than b is sure of: a's cached prefixes make room.
  for (RequestId id = 1; id <= 6; ++id) b.add(id, 60, 30);
  run(a, b);
  EXPECT_GE(b.executor->max_step_requests, 4);
  // The memory goes back.
  for (RequestId id = 11; id <= 16; ++id) a.add(id, 100, 20);
  run(a, b);
  EXPECT_LE(arena->bytes_held(), arena->bytes());
  EXPECT_LE(b.core->scheduler().stats().num_free_blocks, num_free);
  EXPECT_EQ(a.core->scheduler().stats().num_used_slots, 0);
  EXPECT_EQ(b.core->scheduler().stats().num_used_slots, 0);
}

TEST(KVArenaEnginesTest, BothUnderLoadPreemptAndFinish) {
  const auto arena = std::make_shared<KVArena>(30 * kBlockBytes);
  EngineOfArena a(arena);
  EngineOfArena b(arena);
  for (RequestId id = 1; id <= 12; ++id) {
    a.add(id, 20 + 10 * static_cast<int32_t>(id), 40);
    b.add(id, 140 - 10 * static_cast<int32_t>(id), 40);
  }
  run(a, b);
}

TEST(KVArenaEnginesTest, MemoryOfAnEngineThatEndsIsTheOthers) {
  const auto arena = std::make_shared<KVArena>(30 * kBlockBytes);
  {
    EngineOfArena a(arena);
    a.add(1, 180, 20);
    for (int i = 0; i < 50; ++i) a.step();
    EXPECT_GT(arena->bytes_held(), 0);
  }
  EXPECT_EQ(arena->bytes_held(), 0);
}

TEST(KVArenaEnginesTest, AnEngineThatWouldBreakTheMinimumOfOthersIsRefused) {
  const auto arena = std::make_shared<KVArena>(30 * kBlockBytes);
  EngineOfArena a(arena);
  EngineOfArena b(arena);
  const std::string error = error_of([&] { EngineOfArena c(arena); });
  // 4 blocks of 30 are nobody's; 13 are needed.
  for (int64_t number : {30 * kBlockBytes, 4 * kBlockBytes, 13 * kBlockBytes})
    EXPECT_NE(error.find(std::to_string(number)), error.npos) << error;
}

TEST(KVArenaEnginesTest, EnginesOnThreadsOfTheirOwnWakeOneAnother) {
  const auto arena = std::make_shared<KVArena>(30 * kBlockBytes);
  const auto serve = [&arena](RequestId first) {
    const auto client = make_threaded_client([&arena](const std::function<void()>& wake) {
      SchedulerParts parts;
      parts.wake = wake;
      return std::make_unique<EngineCore>(sharing(arena), make_executor(2), std::move(parts));
    });
    std::map<RequestId, std::vector<int32_t>> expected, produced;
    for (int round = 0; round < 3; ++round) {
      size_t num_left = 6;
      for (RequestId id = first; id < first + num_left; ++id) {
        EngineCoreRequest request = numbered_request(id, 60 + static_cast<int32_t>(id) % 50, 30);
        expected[id] = shadow_output(*request.prompt_token_ids, 30, true);
        client->add_requests({request});
      }
      first += num_left;
      EngineCoreOutputs outputs;
      while (num_left > 0 && client->get_outputs(outputs)) {
        for (const EngineCoreOutput& output : outputs.outputs) {
          const auto ids = outputs.new_token_ids(output);
          produced[output.request_id].insert(produced[output.request_id].end(), ids.begin(), ids.end());
          num_left -= output.finish_reason != FinishReason::kNone;
        }
        ASSERT_EQ(outputs.engine_error, "");
      }
    }
    EXPECT_EQ(produced, expected);
  };
  std::thread a(serve, 1);
  std::thread b(serve, 1001);
  a.join();
  b.join();
  EXPECT_EQ(arena->bytes_held(), 0);
}

}  // namespace
}  // namespace quire
