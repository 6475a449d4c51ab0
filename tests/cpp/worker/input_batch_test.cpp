#include "worker/input_batch.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

constexpr int32_t kBlockSize = 2;

CachedRequestState request(RequestId id, std::vector<int32_t> tokens, std::vector<BlockId> blocks) {
  CachedRequestState state;
  state.request_id = id;
  state.token_ids = std::move(tokens);
  state.block_ids = {std::move(blocks)};
  return state;
}

std::vector<int32_t> tokens_of(InputBatch& batch, int32_t row) {
  return {batch.token_ids(row), batch.token_ids(row) + batch.num_tokens(row)};
}

TEST(InputBatchTest, CondensingMovesTheLastRowIntoTheHole) {
  InputBatch batch(/*max_num_seqs=*/4, /*max_model_len=*/8, std::vector{kBlockSize});
  auto a = request(1, {1}, {10}), b = request(2, {2, 2}, {20}), c = request(3, {3, 3, 3}, {30, 31});
  for (auto* r : {&a, &b, &c}) batch.add(*r);
  batch.remove(a);
  batch.condense();
  EXPECT_EQ(batch.size(), 2);
  EXPECT_EQ(c.row, 0);
  EXPECT_EQ(b.row, 1);
  EXPECT_EQ(tokens_of(batch, 0), (std::vector<int32_t>{3, 3, 3}));
  EXPECT_EQ(batch.block_table(0).slot(0, 2), 31 * kBlockSize);
}

TEST(InputBatchTest, ARemovedRequestTakesItsStateAlong) {
  InputBatch batch(2, 8, std::vector{kBlockSize});
  auto a = request(1, {1, 2}, {10});
  batch.add(a);
  batch.append_token(a.row, 3);
  const BlockId more[] = {11};
  batch.block_table(0).append(a.row, more);
  batch.remove(a);
  batch.condense();
  EXPECT_EQ(batch.size(), 0);
  EXPECT_EQ(a.token_ids, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(a.block_ids[0], (std::vector<BlockId>{10, 11}));
  batch.add(a);
  EXPECT_EQ(tokens_of(batch, a.row), (std::vector<int32_t>{1, 2, 3}));
}

TEST(InputBatchTest, ManyHolesAreFilledFromTheEnd) {
  InputBatch batch(6, 4, std::vector{kBlockSize});
  std::vector<CachedRequestState> requests;
  for (int32_t i = 0; i < 6; ++i) requests.push_back(request(static_cast<RequestId>(i), {i}, {i + 1}));
  for (auto& r : requests) batch.add(r);
  for (size_t i : {0U, 2U, 5U}) batch.remove(requests[i]);
  batch.condense();
  EXPECT_EQ(batch.size(), 3);
  for (size_t i : {1U, 3U, 4U}) {
    EXPECT_LT(requests[i].row, 3);
    EXPECT_EQ(tokens_of(batch, requests[i].row), std::vector<int32_t>{static_cast<int32_t>(i)});
    EXPECT_EQ(&batch.request(requests[i].row), &requests[i]);
  }
}

TEST(InputBatchTest, ARowFilledToMaxModelLenTakesNoMore) {
  InputBatch batch(1, 2, std::vector{kBlockSize});
  auto a = request(1, {1}, {10});
  batch.add(a);
  batch.append_token(0, 2);
  EXPECT_THROW(batch.append_token(0, 3), InternalError);
}

}  // namespace
}  // namespace quire
