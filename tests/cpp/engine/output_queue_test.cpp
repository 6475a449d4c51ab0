#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "quire/engine.h"

namespace quire {
namespace {

TEST(OutputQueueTest, UntakenDeltasAreMerged) {
  OutputQueue queue;
  const OutputCallback push = queue.callback(RequestOutputKind::kDelta);
  for (const char* text : {"a", "b", "c"}) {
    RequestOutput output;
    output.request_id = "r";
    output.outputs.emplace_back();
    output.outputs[0].text = text;
    output.outputs[0].token_ids = {1};
    output.finished = text[0] == 'c';
    output.metrics.last_token_time = text[0];
    output.usage.num_generation_tokens = text[0];
    output.outputs[0].num_reasoning_tokens = text[0];
    push(std::move(output));
  }
  const auto taken = queue.take(std::chrono::milliseconds(0));
  ASSERT_EQ(taken.size(), 1U);
  EXPECT_EQ(taken[0].outputs[0].text, "abc");
  EXPECT_EQ(taken[0].outputs[0].token_ids.size(), 3U);
  EXPECT_EQ(taken[0].metrics.last_token_time, 'c');
  EXPECT_EQ(taken[0].usage.num_generation_tokens, 'c');
  EXPECT_EQ(taken[0].outputs[0].num_reasoning_tokens, 'c');
  EXPECT_TRUE(taken[0].finished);
  EXPECT_TRUE(queue.take(std::chrono::milliseconds(0)).empty());
}

// Engines' threads push while somebody takes: no token is lost, none comes twice, and each request's stay in
// order.
TEST(OutputQueueTest, SeveralEnginesMayPushWhileOneTakes) {
  constexpr int kRequests = 4, kTokens = 500;
  OutputQueue queue;
  std::vector<std::thread> engines;
  for (int request = 0; request < kRequests; ++request) {
    engines.emplace_back([&queue, id = std::to_string(request)] {
      const OutputCallback push = queue.callback(RequestOutputKind::kDelta);
      for (int token = 0; token < kTokens; ++token) {
        RequestOutput output;
        output.request_id = id;
        output.outputs.emplace_back();
        output.outputs[0].token_ids = {token};
        output.finished = token + 1 == kTokens;
        push(std::move(output));
      }
    });
  }
  std::unordered_map<std::string, std::vector<int32_t>> tokens;
  for (int finished = 0; finished < kRequests;) {
    const auto taken = queue.take(std::chrono::seconds(30));
    if (taken.empty()) break;
    for (const RequestOutput& output : taken) {
      const auto& more = output.outputs.at(0).token_ids;
      auto& all = tokens[output.request_id];
      all.insert(all.end(), more.begin(), more.end());
      finished += output.finished;
    }
  }
  for (std::thread& engine : engines) engine.join();
  std::vector<int32_t> expected(kTokens);
  for (int token = 0; token < kTokens; ++token) expected[static_cast<size_t>(token)] = token;
  ASSERT_EQ(tokens.size(), static_cast<size_t>(kRequests));
  for (const auto& [id, got] : tokens) EXPECT_EQ(got, expected) << id;
}

}  // namespace
}  // namespace quire
