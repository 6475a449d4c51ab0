#include "request/request.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "quire/error.h"
#include "request/make_request.h"

namespace quire {
namespace {

Request request(std::vector<int32_t> prompt, std::vector<int32_t> output = {}) {
  EngineCoreRequest message = make_request(1, std::move(prompt));
  message.output_token_ids = std::move(output);
  return Request(std::move(message), /*hash_block_size=*/2);
}

TEST(RequestTest, HashesFullBlocksOnly) {
  Request r = request({1, 2, 3});
  EXPECT_EQ(r.block_hashes().size(), 1U);
  r.append_output_token(4);
  EXPECT_EQ(r.block_hashes().size(), 2U);
  EXPECT_EQ(r.num_output_tokens(), 1);
}

TEST(RequestTest, ABlocksNameDependsOnEverythingBefore) {
  const Request a = request({1, 2, 3, 4});
  const Request b = request({0, 2, 3, 4});
  EXPECT_NE(a.block_hashes()[1], b.block_hashes()[1]);
}

TEST(RequestTest, GeneratedAndGivenTokensHashAlike) {
  Request a = request({1, 2, 3});
  a.append_output_token(4);
  const Request b = request({1, 2, 3, 4});
  EXPECT_EQ(a.block_hashes()[1], b.block_hashes()[1]);
}

TEST(RequestTest, PriorOutputCountsAsOutput) {
  const Request r = request({1, 2}, {3, 4});
  EXPECT_EQ(r.num_prompt_tokens(), 2);
  EXPECT_EQ(r.num_output_tokens(), 2);
}

TEST(RequestTest, EveryFinishedStatusHasAReason) {
  EXPECT_EQ(finish_reason(RequestStatus::kFinishedStopped), FinishReason::kStop);
  EXPECT_EQ(finish_reason(RequestStatus::kFinishedLengthCapped), FinishReason::kLength);
  EXPECT_EQ(finish_reason(RequestStatus::kFinishedAborted), FinishReason::kAbort);
  EXPECT_EQ(finish_reason(RequestStatus::kFinishedIgnored), FinishReason::kLength);
  EXPECT_EQ(finish_reason(RequestStatus::kFinishedError), FinishReason::kError);
  EXPECT_EQ(finish_reason(RequestStatus::kPreempted), FinishReason::kNone);
}

TEST(RequestTest, ImagesTellEqualPlaceholdersApart) {
  const auto with_image = [](const std::string& mm_hash, int32_t offset) {
    EngineCoreRequest message;
    message.prompt_token_ids = {1, 2, 3, 4, 5, 6, 7, 8};
    message.mm_features = {{mm_hash, offset, 3}};
    return Request(std::move(message), 2);
  };
  const Request cat = with_image("cat", 3);  // tokens 3 to 5: the second and third block
  const Request dog = with_image("dog", 3);
  const Request later = with_image("cat", 2);
  EXPECT_EQ(cat.block_hashes()[0], dog.block_hashes()[0]);
  EXPECT_NE(cat.block_hashes()[1], dog.block_hashes()[1]);
  EXPECT_NE(cat.block_hashes()[3], dog.block_hashes()[3]);
  EXPECT_NE(cat.block_hashes()[1], later.block_hashes()[1]);
  EXPECT_EQ(cat.block_hashes()[3], with_image("cat", 3).block_hashes()[3]);
}

TEST(RequestTest, ARecordedRequestGoesOnFromItsLastHash) {
  const auto recorded = [](std::vector<BlockHash> hashes) {
    EngineCoreRequest message;
    message.prompt_token_ids = {0, 0, 0, 0};
    return Request(std::move(message), 2, HashSeed{}, std::move(hashes));
  };
  const BlockHash cat{1, 2}, dog{3, 4};
  EXPECT_EQ(recorded({cat}).block_hashes()[0], cat);
  EXPECT_NE(recorded({cat}).block_hashes()[1], recorded({dog}).block_hashes()[1]);
  EXPECT_EQ(recorded({cat}).block_hashes()[1], recorded({cat}).block_hashes()[1]);
}

// A request of ten prompt tokens, the steps that compute it, and what it counts for.
struct CountedRequest {
  explicit CountedRequest(int32_t max_tokens = 8) {
    EngineCoreRequest message;
    message.request_id = 1;
    message.prompt_token_ids = std::vector<int32_t>(10, 7);
    message.sampling_params.edit().max_tokens = max_tokens;
    request = std::make_unique<Request>(std::move(message), 2, HashSeed{}, std::vector<BlockHash>(), &totals);
    request->arrive(0, /*long_prefill_token_threshold=*/9);
    request->enqueue();
  }
  ScheduledRequest begin(int32_t num_tokens) {
    ScheduledRequest scheduled;
    drafts.clear();
    request->begin_step(num_tokens, scheduled, drafts);
    return scheduled;
  }

  RequestTotals totals;
  std::vector<int32_t> drafts;
  std::unique_ptr<Request> request;
};

TEST(RequestTest, WhatWaitsAndWhatIsPrefilledIsCountedAsItComesAndGoes) {
  CountedRequest one;
  Request& r = *one.request;
  EXPECT_EQ(one.totals, (RequestTotals{.num_waiting_tokens = 10}));
  r.set_slots(/*num_slots=*/12, /*sum=*/24, /*num_groups=*/2);
  r.run(2, 0, 1.5);
  EXPECT_EQ(one.totals, (RequestTotals{.num_prefill_tokens = 8,
                                       .num_partial_prefills = 1,
                                       .num_long_partial_prefills = 1,
                                       .num_wasted_slots = 20}));
  const ScheduledRequest chunk = one.begin(5);
  EXPECT_EQ(chunk.samples, 0);
  EXPECT_EQ(one.totals.num_prefill_tokens, 3);
  EXPECT_EQ(one.totals.num_wasted_slots, 10);
  const ScheduledRequest rest = one.begin(3);
  EXPECT_EQ(rest.samples, 1);
  EXPECT_EQ(rest.num_computed_tokens, 7);
  EXPECT_FALSE(r.is_partial_prefill());
  EXPECT_EQ(one.totals, (RequestTotals{.num_wasted_slots = 4}));
  r.finish(RequestStatus::kFinishedAborted);
  r.set_slots(0, 0, 0);
  EXPECT_EQ(one.totals, RequestTotals());
  EXPECT_EQ(r.num_cached_tokens(), 2);
  EXPECT_EQ(r.first_scheduled_time(), 1.5);
}

TEST(RequestTest, StepsInFlightAreCountedUntilTheyReturn) {
  CountedRequest one;
  Request& r = *one.request;
  r.run(0, 0, 0.0);
  const ScheduledRequest prefill = one.begin(10);
  const ScheduledRequest decode = one.begin(1);
  EXPECT_EQ(r.num_steps_in_flight(), 2);
  EXPECT_EQ(r.num_tokens_in_flight(), 11);
  EXPECT_EQ(r.num_output_placeholders(), 2);
  EXPECT_EQ(r.num_tokens_with_spec(), 12);
  EXPECT_TRUE(r.end_step(prefill));
  r.append_output_token(5);
  EXPECT_EQ(r.num_tokens_with_spec(), 12);
  r.finish(RequestStatus::kFinishedAborted);
  EXPECT_FALSE(r.end_step(decode));  // it came too late
  EXPECT_EQ(r.num_steps_in_flight(), 0);
  EXPECT_EQ(r.num_tokens_in_flight(), 0);
}

TEST(RequestTest, ARejectedDraftIsComputedAgain) {
  CountedRequest one;
  Request& r = *one.request;
  r.run(0, 0, 0.0);
  ASSERT_TRUE(r.end_step(one.begin(10)));
  r.append_output_token(5);
  r.set_spec_token_ids(std::vector<int32_t>{6, 7, 8});
  const ScheduledRequest step = one.begin(3);  // the third draft is forgotten
  EXPECT_EQ(step.num_spec_tokens, 2);
  EXPECT_EQ(one.drafts, (std::vector<int32_t>{6, 7}));
  EXPECT_TRUE(r.spec_token_ids().empty());
  EXPECT_EQ(r.num_computed_tokens(), 13);
  ASSERT_TRUE(r.end_step(step));
  r.rewind(r.num_computed_tokens() - 2);
  r.append_output_token(9);
  EXPECT_EQ(r.num_computed_tokens(), 11);
  EXPECT_EQ(r.num_tokens_with_spec(), 12);
}

TEST(RequestTest, APreemptedRequestWaitsWithAllItsTokensAndStillGetsTheOneOnItsWay) {
  CountedRequest one;
  Request& r = *one.request;
  r.set_slots(12, 12, 1);
  r.run(0, 0, 0.0);
  const ScheduledRequest step = one.begin(10);
  r.set_slots(0, 0, 0);
  r.preempt();
  EXPECT_EQ(r.status(), RequestStatus::kPreempted);
  EXPECT_EQ(r.num_preemptions(), 1);
  EXPECT_EQ(one.totals, (RequestTotals{.num_waiting_tokens = 10}));
  ASSERT_TRUE(r.end_step(step));
  r.append_output_token(5);
  EXPECT_EQ(one.totals.num_waiting_tokens, 11);
  EXPECT_EQ(r.num_output_placeholders(), 0);
  r.run(8, 0, 2.0);
  EXPECT_EQ(r.num_prefill_tokens(), 11);  // its output is recomputed like a prompt
  EXPECT_EQ(r.first_scheduled_time(), 0.0);
}

TEST(RequestTest, AStepThatIsTakenBackLeavesNothing) {
  CountedRequest one;
  Request& r = *one.request;
  r.run(0, 0, 0.0);
  const RequestTotals before = one.totals;
  r.take_back_step(one.begin(10));
  EXPECT_EQ(one.totals, before);
  EXPECT_EQ(r.num_computed_tokens(), 0);
  EXPECT_EQ(r.num_steps_in_flight(), 0);
  EXPECT_EQ(r.num_tokens_in_flight(), 0);
  EXPECT_EQ(r.num_output_placeholders(), 0);
}

TEST(RequestTest, ResultsComputedOnWhatWasNotThereAreDropped) {
  CountedRequest one;
  Request& r = *one.request;
  r.run(0, 0, 0.0);
  const ScheduledRequest first = one.begin(10);
  const ScheduledRequest second = one.begin(1);
  r.rewind(4, InFlightResults::kDrop);
  EXPECT_EQ(r.num_output_placeholders(), 0);
  EXPECT_EQ(one.totals.num_prefill_tokens, 6);
  const ScheduledRequest again = one.begin(6);
  EXPECT_FALSE(r.end_step(first));
  EXPECT_FALSE(r.end_step(second));
  EXPECT_TRUE(r.end_step(again));
  EXPECT_EQ(r.num_computed_tokens(), 10);
}

TEST(RequestTest, WhatALoadBringsCountsAsComputed) {
  CountedRequest one;
  Request& r = *one.request;
  r.begin_load(2, 6);
  EXPECT_EQ(one.totals, (RequestTotals{.num_waiting_for_remote_kvs = 1}));
  r.fail_load(/*num_tokens=*/6);
  EXPECT_TRUE(r.kv_load_failed());
  EXPECT_EQ(r.num_external_tokens(), 4);
  r.end_load();
  EXPECT_EQ(r.num_computed_tokens(), 6);
  EXPECT_EQ(r.num_cached_tokens(), 6);
  EXPECT_EQ(one.totals, (RequestTotals{.num_waiting_tokens = 4}));
  r.rewind(0);
  EXPECT_EQ(r.num_external_tokens(), 0);
  EXPECT_EQ(one.totals, (RequestTotals{.num_waiting_tokens = 10}));
}

TEST(RequestTest, AUserIsChargedForATokenOnce) {
  CountedRequest one;
  Request& r = *one.request;
  r.run(0, 0, 0.0);
  const auto charged = [&](const ScheduledRequest& step) {
    const Request::Charge charge = r.charge(step);
    return std::pair(charge.num_prefill_tokens, charge.num_decode_tokens);
  };
  EXPECT_EQ(charged(one.begin(4)), (std::pair{4, 0}));
  r.preempt();
  r.run(0, 0, 1.0);
  EXPECT_EQ(charged(one.begin(10)), (std::pair{6, 0}));
  EXPECT_EQ(charged(one.begin(1)), (std::pair{0, 1}));
}

TEST(RequestTest, ASavedRequestIsRestoredWithItsPartOfTheTotals) {
  CountedRequest one;
  one.request->run(2, 0, 1.0);
  one.begin(3);
  one.request->set_spec_token_ids(std::vector<int32_t>{6});
  RequestSnapshot saved;
  one.request->save(saved);
  CountedRequest other;
  other.request->restore(saved);
  RequestSnapshot again;
  other.request->save(again);
  std::vector<std::byte> bytes, bytes_again;
  serialize(saved, bytes);
  serialize(again, bytes_again);
  EXPECT_EQ(bytes, bytes_again);
  EXPECT_EQ(other.totals, one.totals);
  saved.num_output_placeholders = saved.num_steps_in_flight + 1;
  EXPECT_THROW(other.request->restore(saved), InvalidArgument);
}

}  // namespace
}  // namespace quire
