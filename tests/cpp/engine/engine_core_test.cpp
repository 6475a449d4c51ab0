#include "engine/engine_core.h"

#include <gtest/gtest.h>

#include <map>

#include "engine/engine_core_rig.h"
#include "request/make_request.h"

namespace quire {
namespace {

TEST(EngineCoreTest, LongPromptsAreComputedInChunks) {
  CoreHarness harness(small_core_config(14), 200, 1);
  harness.core->add_request(make_request(1, std::vector<int32_t>(100, 5), 3));
  harness.step();
  EXPECT_TRUE(harness.produced.empty());  // 40 of 100
  harness.step();
  EXPECT_TRUE(harness.produced.empty());  // 80
  harness.step();
  EXPECT_EQ(harness.produced[1].size(), 1U);
  harness.run();
  EXPECT_EQ(harness.produced[1], shadow_output(std::vector<int32_t>(100, 5), 3, true));
  EXPECT_EQ(harness.finished[1], FinishReason::kLength);
}

TEST(EngineCoreTest, NoStepWaitsForAnAdapterThatComesWhileOthersCompute) {
  for (const int max_in_flight : {1, 2}) {
    EngineConfig config = small_core_config(/*usable_blocks=*/14);
    config.enable_lora = true;
    config.max_loras = 3;
    auto executor = std::make_unique<ShadowExecutor>(kCoreBlockSize, /*max_model_len=*/200, max_in_flight);
    executor->has_lora_copies = true;
    CoreHarness harness(config, std::move(executor));
    for (RequestId id = 1; id <= 3; ++id) {
      auto request = make_request(id, {1, 2, 3}, /*max_tokens=*/8);
      request.lora_id = static_cast<LoraId>(id);
      harness.core->add_request(std::move(request));
    }
    // The first one would be alone in its step, and waits; the others do not.
    for (int i = 0; i < max_in_flight; ++i) harness.step();
    EXPECT_EQ(harness.produced.size(), 1U);
    harness.step();
    EXPECT_EQ(harness.produced.size(), 3U);
    harness.run();
    for (RequestId id = 1; id <= 3; ++id) EXPECT_EQ(harness.produced[id], shadow_output({1, 2, 3}, 8, true));
  }
}

TEST(EngineCoreTest, AnAbortFreesItsBlocksAtOnceEvenInFlight) {
  CoreHarness harness(small_core_config(14), 200, 2);
  harness.core->add_request(make_request(1, std::vector<int32_t>(30, 5), 50));
  for (int i = 0; i < 5; ++i) harness.step();
  const RequestId id = 1;
  harness.core->abort_requests({&id, 1});
  EXPECT_EQ(harness.free_blocks(), harness.num_free_at_start);
  harness.run();
}

// The second request is in the third step alone, which was on its way when the second one failed.
TEST(EngineCoreTest, StepsBehindAFailedOneFailWhateverTheyReport) {
  EngineConfig config = small_core_config(14);
  config.max_num_seqs = 2;
  CoreHarness harness(config, 200, 2);
  harness.executor->fail_step = 2;
  harness.core->add_request(make_request(1, std::vector<int32_t>(80, 5), 20));
  harness.core->add_request(make_request(2, {4, 5, 6}, 5));
  harness.core->add_request(make_request(3, {7, 8, 9}, 5));  // waits meanwhile
  harness.run();
  EXPECT_EQ(harness.finished[1], FinishReason::kError);
  EXPECT_EQ(harness.finished[2], FinishReason::kError);
  EXPECT_TRUE(harness.produced[2].empty());
  EXPECT_EQ(harness.produced[3], shadow_output({7, 8, 9}, 5, true));
  EXPECT_EQ(harness.free_blocks(), harness.num_free_at_start);
}

TEST(EngineCoreTest, AQueueTimeoutEndsWhatHasNotBegunAndNothingElse) {
  EngineConfig config = small_core_config(14);
  config.max_num_seqs = 1;
  CoreHarness harness(config, 200, 1);
  for (const RequestId id : {RequestId{1}, RequestId{2}, RequestId{3}}) {
    EngineCoreRequest request = make_request(id, {5, 6, 7}, 4);
    if (id != 3) request.queue_deadline = 2.0;
    harness.core->add_request(std::move(request));
  }
  harness.step();
  harness.now = 1.9;
  harness.step();
  EXPECT_TRUE(harness.finished.empty());
  harness.now = 2.0;
  harness.step();
  EXPECT_EQ(harness.finished, (std::map<RequestId, FinishReason>{{2, FinishReason::kAbort}}));
  harness.run();
  EXPECT_EQ(harness.finished.at(1), FinishReason::kLength) << "it ran";
  EXPECT_EQ(harness.finished.at(3), FinishReason::kLength) << "it may wait";
  EXPECT_EQ(harness.produced[2].size(), 0U);
  EXPECT_EQ(harness.free_blocks(), harness.num_free_at_start);
}

TEST(EngineCoreTest, AFailedStepEndsItsRequestsAndNoOthers) {
  EngineConfig config = small_core_config(14);
  config.max_num_seqs = 1;
  CoreHarness harness(config, 200, 2);
  harness.executor->fail_step = 2;
  harness.core->add_request(make_request(1, {1, 2, 3}, 20));
  harness.core->add_request(make_request(2, {4, 5, 6}, 5));
  harness.run();
  EXPECT_EQ(harness.finished[1], FinishReason::kError);
  EXPECT_EQ(harness.produced[2], shadow_output({4, 5, 6}, 5, true));
  EXPECT_EQ(harness.free_blocks(), harness.num_free_at_start);
}

// In every row of the batch, at its first token and later, with and without a step behind it and drafts.
TEST(EngineCoreTest, BystandersOfAFailingRequestGetTheTokensThatTheyWouldHaveWithoutIt) {
  const auto prompt = [](RequestId id) { return std::vector<int32_t>(5 + 9 * id, static_cast<int32_t>(id)); };
  constexpr RequestId kNumRequests = 4;
  for (const auto& [max_in_flight, num_drafts] : {std::pair{1, 0}, {2, 0}, {1, 2}}) {
    for (RequestId failing = 1; failing <= kNumRequests; ++failing) {
      for (const int32_t num_good : {0, 3}) {
        SCOPED_TRACE(testing::Message() << max_in_flight << " steps, " << num_drafts << " drafts, request "
                                        << failing << " fails after " << num_good);
        auto executor = std::make_unique<ShadowExecutor>(std::vector{shadow_spec(kCoreBlockSize)}, 200,
                                                         max_in_flight, num_drafts);
        executor->failing_request = failing;
        executor->num_good_samples = num_good;
        CoreHarness harness(small_core_config(30), std::move(executor));
        for (RequestId id = 1; id <= kNumRequests; ++id)
          harness.core->add_request(make_request(id, prompt(id), 12));
        harness.run();
        for (RequestId id = 1; id <= kNumRequests; ++id) {
          const auto whole = shadow_output(prompt(id), 12, true);
          if (id == failing) {
            EXPECT_EQ(harness.finished[id], FinishReason::kError);
            const auto& produced = harness.produced[id];
            ASSERT_LT(produced.size(), whole.size());
            EXPECT_TRUE(std::equal(produced.begin(), produced.end(), whole.begin()));
          } else {
            EXPECT_EQ(harness.finished[id], FinishReason::kLength);
            EXPECT_EQ(harness.produced[id], whole) << id;
          }
        }
        EXPECT_EQ(harness.free_blocks(), harness.num_free_at_start);
      }
    }
  }
}

TEST(EngineCoreTest, StepsThatFailInARowEndTheEngine) {
  for (const uint64_t num_failing : {7, 8}) {
    CoreHarness harness(small_core_config(14), 200, 2);
    harness.executor->fail_step = 3;
    harness.executor->num_failing_steps = num_failing;
    const auto ask = [&] {
      for (RequestId id = 1; id <= 20; ++id) {
        harness.core->add_request(make_request(id, {1, 2, 3}, 4));
        harness.run();
      }
    };
    if (num_failing == 8) {
      EXPECT_THROW(ask(), InternalError);
    } else {
      ask();
      EXPECT_EQ(harness.finished[20], FinishReason::kLength);
    }
  }
}

TEST(EngineCoreTest, BlocksOfAFailedStepAreNotReused) {
  CoreHarness harness(small_core_config(14), 200, 1);
  harness.executor->fail_step = 1;
  const std::vector<int32_t> prompt(33, 5);
  harness.core->add_request(make_request(1, prompt, 4));
  harness.run();
  harness.core->add_request(make_request(2, prompt, 4));
  harness.run();  // the shadow cache complains if 2 reads what 1 never wrote
  EXPECT_EQ(harness.produced[2], shadow_output(prompt, 4, true));
}

TEST(EngineCoreTest, ARequestGoesOnWhereAnotherEngineLeftOff) {
  const std::vector<int32_t> prompt = {3, 1, 4};
  const auto whole = shadow_output(prompt, 10, true);
  CoreHarness harness(small_core_config(14), 200, 1);
  EngineCoreRequest request = make_request(1, prompt, 10);
  request.output_token_ids = {whole.begin(), whole.begin() + 6};
  harness.core->add_request(std::move(request));
  harness.run();
  EXPECT_EQ(harness.produced[1], std::vector<int32_t>(whole.begin() + 6, whole.end()));
}

TEST(EngineCoreTest, RefusesACacheTooSmallForOneSequence) {
  EXPECT_THROW(CoreHarness(small_core_config(2), 200, 1), InvalidArgument);
}

TEST(EngineCoreTest, WithoutChunksTheBudgetMustHoldTheLongestPrompt) {
  EngineConfig config = small_core_config(14);
  config.enable_chunked_prefill = false;
  EXPECT_THROW(CoreHarness(config, 200, 1), InvalidArgument);
  config.max_num_batched_tokens = 200;
  EXPECT_NO_THROW(CoreHarness(config, 200, 1));
}

}  // namespace
}  // namespace quire
