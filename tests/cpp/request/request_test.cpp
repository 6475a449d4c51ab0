#include "request/request.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

Request request(std::vector<int32_t> prompt, std::vector<int32_t> output = {}) {
  EngineCoreRequest message;
  message.request_id = 1;
  message.prompt_token_ids = std::move(prompt);
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

}  // namespace
}  // namespace quire
