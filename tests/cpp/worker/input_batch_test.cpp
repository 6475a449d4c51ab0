#include "worker/input_batch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "worker/tokens_of.h"

namespace quire {
namespace {

constexpr int32_t kBlockSize = 2;

CachedRequestState request(RequestId id, std::vector<int32_t> tokens, std::vector<BlockId> blocks) {
  CachedRequestState state;
  state.request_id = id;
  state.prompt_token_ids = std::move(tokens);
  state.block_ids = {std::move(blocks)};
  return state;
}

std::vector<int32_t> tokens_of(InputBatch& batch, int32_t row) {
  const CachedRequestState& request = batch.request(row);
  return {batch.token_ids(request), batch.token_ids(request) + request.num_tokens};
}
std::vector<BlockId> blocks_of(InputBatch& batch, size_t group, int32_t row) {
  const auto ids = batch.block_table(group).ids(batch.state_indices()[static_cast<size_t>(row)]);
  return {ids.begin(), ids.end()};
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
  int64_t slots[2];
  batch.block_table(0).fill_slots(c.state_index, /*begin=*/1, /*count=*/2, slots);
  EXPECT_EQ(slots[0], 30 * kBlockSize + 1);
  EXPECT_EQ(slots[1], 31 * kBlockSize);
}

TEST(InputBatchTest, DraftsFollowTheTokensAndCountWhenTheyWereRight) {
  InputBatch batch(2, 8, std::vector{kBlockSize});
  auto a = request(1, {1, 2, 3}, {10});
  batch.add(a);
  batch.set_drafts(a, std::vector{4, -1, 6});
  EXPECT_EQ(a.num_tokens, 3);
  const int32_t* row = batch.token_ids(a);
  EXPECT_EQ(std::vector(row, row + 6), (std::vector{1, 2, 3, 4, 0, 6}));
  EXPECT_THROW(batch.set_drafts(a, std::vector{4}), InternalError);
  EXPECT_THROW(batch.accept_drafts(a, 4), InternalError);
  batch.accept_drafts(a, 1);
  EXPECT_EQ(tokens_of(batch, 0), (std::vector{1, 2, 3, 4}));
  // The last place is for what is sampled behind them.
  EXPECT_THROW(batch.set_drafts(a, std::vector{4, 4, 4, 4}), InternalError);
}

TEST(InputBatchTest, ARemovedRequestTakesItsStateAlong) {
  InputBatch batch(2, 8, std::vector{kBlockSize});
  auto a = request(1, {1, 2}, {10});
  batch.add(a);
  batch.append_token(a, 3);
  const BlockId more[] = {11};
  batch.block_table(0).append(a.state_index, more);
  batch.remove(a);
  batch.condense();
  EXPECT_EQ(batch.size(), 0);
  EXPECT_EQ(tokens_of(a), (std::vector<int32_t>{1, 2, 3}));
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
  batch.append_token(a, 2);
  EXPECT_THROW(batch.append_token(a, 3), InternalError);
}

TEST(InputBatchTest, ARequestLongerThanARowIsRefused) {
  InputBatch batch(1, 2, std::vector{kBlockSize});
  auto a = request(1, {1, 2, 3}, {10});
  EXPECT_THROW(batch.add(a), InternalError);
}

// ---- changing places ---------------------------------------------------------------------------------

TEST(InputBatchTest, ASwapMovesNoTokenAndNoBlockId) {
  InputBatch batch(3, 12, std::vector{kBlockSize, 4});
  auto a = request(1, {100, 101, 102}, {}), b = request(2, {200}, {});
  a.block_ids = {{10, 11, 12, 13}, {}};
  b.block_ids = {{20}, {22}};
  for (auto* r : {&a, &b}) batch.add(*r);
  const int32_t *a_tokens = batch.token_ids(a), *b_tokens = batch.token_ids(b);
  const BlockId* a_blocks = batch.block_table(0).ids(a.state_index).data();
  const std::vector<int32_t> states(batch.state_indices().begin(), batch.state_indices().end());
  EXPECT_EQ(states, (std::vector{a.state_index, b.state_index}));
  batch.swap_rows(0, 1);
  EXPECT_EQ(a.row, 1);
  EXPECT_EQ(b.row, 0);
  EXPECT_EQ(&batch.request(0), &b);
  EXPECT_EQ(std::vector(batch.state_indices().begin(), batch.state_indices().end()),
            (std::vector{states[1], states[0]}));
  EXPECT_EQ(batch.token_ids(a), a_tokens);
  EXPECT_EQ(batch.token_ids(b), b_tokens);
  EXPECT_EQ(batch.block_table(0).ids(a.state_index).data(), a_blocks);
  EXPECT_EQ(tokens_of(batch, 1), (std::vector<int32_t>{100, 101, 102}));
  EXPECT_EQ(blocks_of(batch, 0, 1), (std::vector<BlockId>{10, 11, 12, 13}));
  EXPECT_EQ(blocks_of(batch, 1, 0), std::vector<BlockId>{22});
}

// A device has been told of them once.
TEST(InputBatchTest, BlockIdsOfARowThatMovesCountAsSent) {
  InputBatch batch(3, 12, std::vector{kBlockSize});
  auto a = request(1, {1}, {10, 11}), b = request(2, {2}, {20}), c = request(3, {3}, {30});
  for (auto* r : {&a, &b, &c}) batch.add(*r);
  const auto take = [&batch](const CachedRequestState& r) {
    int32_t begin = 0;
    const auto ids = batch.block_table(0).take_unsent(r.state_index, begin);
    return std::pair(begin, std::vector(ids.begin(), ids.end()));
  };
  for (auto* r : {&a, &b, &c}) EXPECT_EQ(take(*r).second, r->block_ids[0]);
  batch.swap_rows(a.row, b.row);
  batch.remove(b);
  batch.condense();
  const BlockId more[] = {12};
  batch.block_table(0).append(a.state_index, more);
  EXPECT_EQ(take(a), (std::pair<int32_t, std::vector<BlockId>>{2, {12}}));
  EXPECT_TRUE(take(c).second.empty());
  // Whoever gets its place is new there.
  batch.add(b);
  EXPECT_EQ(take(b), (std::pair<int32_t, std::vector<BlockId>>{0, {20}}));
}

TEST(InputBatchTest, ARowSwappedWithItselfStays) {
  InputBatch batch(2, 4, std::vector{kBlockSize});
  auto a = request(1, {1, 2}, {10});
  batch.add(a);
  batch.swap_rows(0, 0);
  EXPECT_EQ(tokens_of(batch, 0), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(a.row, 0);
}

TEST(InputBatchTest, AHoleChangesPlacesWithNobody) {
  InputBatch batch(3, 4, std::vector{kBlockSize});
  auto a = request(1, {1}, {10}), b = request(2, {2}, {20});
  for (auto* r : {&a, &b}) batch.add(*r);
  batch.remove(b);
  EXPECT_THROW(batch.swap_rows(0, 1), InternalError);
}

// Against vectors that are simply copied, 10,000 random operations.
class InputBatchModelTest : public testing::Test {
 protected:
  static constexpr int32_t kMaxSeqs = 9, kMaxModelLen = 40;

  // What a row must hold; its own blocks too.
  struct Model {
    CachedRequestState* request;
    std::vector<int32_t> tokens;
    BlockIdsByGroup blocks;
  };
  int32_t uniform(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(rng);
  }
  std::vector<int32_t> random_ids(int32_t count) {
    std::vector<int32_t> ids(static_cast<size_t>(count));
    for (int32_t& id : ids) id = uniform(1, 1 << 20);
    return ids;
  }
  void add() {
    const auto free = std::find_if(requests.begin(), requests.end(), [](auto& r) { return r.row < 0; });
    if (free == requests.end()) return;
    // Often empty, often full.
    const int32_t length = std::clamp(uniform(-20, kMaxModelLen + 20), 0, kMaxModelLen);
    free->prompt_token_ids = random_ids(length);
    free->output_token_ids.clear();
    free->block_ids = {random_ids((length + 1) / 2), random_ids((length + 3) / 4)};
    batch.add(*free);
    rows.push_back({&*free, *free->prompt_token_ids, free->block_ids});
  }
  void append(int32_t row) {
    Model& model = rows[static_cast<size_t>(row)];
    if (model.request->num_tokens == kMaxModelLen) return;
    model.tokens.push_back(uniform(1, 1 << 20));
    batch.append_token(*model.request, model.tokens.back());
  }
  // Several rows leave; the last ones fill the holes, lowest first.
  void remove_and_condense() {
    for (int32_t i = uniform(1, 3); i > 0 && !rows.empty(); --i) {
      Model& model = rows[static_cast<size_t>(uniform(0, static_cast<int32_t>(rows.size()) - 1))];
      if (!model.request) continue;
      batch.remove(*model.request);
      ASSERT_EQ(tokens_of(*model.request), model.tokens);
      ASSERT_EQ(model.request->block_ids, model.blocks);
      model.request = nullptr;
    }
    batch.condense();
    for (size_t row = 0; row < rows.size(); ++row) {
      while (!rows.empty() && !rows.back().request) rows.pop_back();
      if (row >= rows.size() || rows[row].request) continue;
      rows[row] = std::move(rows.back());
      rows.pop_back();
    }
  }
  void expect_same() {
    ASSERT_EQ(batch.size(), static_cast<int32_t>(rows.size()));
    for (int32_t row = 0; row < batch.size(); ++row) {
      const Model& model = rows[static_cast<size_t>(row)];
      ASSERT_EQ(&batch.request(row), model.request);
      ASSERT_EQ(model.request->row, row);
      ASSERT_EQ(tokens_of(batch, row), model.tokens);
      for (size_t group = 0; group < 2; ++group) {
        ASSERT_EQ(blocks_of(batch, group, row), model.blocks[group]);
      }
    }
  }

  std::mt19937 rng{11};
  InputBatch batch{kMaxSeqs, kMaxModelLen, std::vector<int32_t>{2, 4}};
  std::vector<CachedRequestState> requests{kMaxSeqs};
  std::vector<Model> rows;
};

TEST_F(InputBatchModelTest, EveryRowHoldsWhatItShouldAfterAnyOperations) {
  for (int operation = 0; operation < 10000; ++operation) {
    const auto num_rows = static_cast<int32_t>(rows.size());
    const int32_t kind = uniform(0, 8);
    if (kind < 3 || num_rows == 0) {
      add();
    } else if (kind < 5) {
      append(uniform(0, num_rows - 1));
    } else if (kind == 5) {
      remove_and_condense();
    } else {
      const int32_t a = uniform(0, num_rows - 1), b = uniform(0, num_rows - 1);
      batch.swap_rows(a, b);
      std::swap(rows[static_cast<size_t>(a)], rows[static_cast<size_t>(b)]);
    }
    expect_same();
    ASSERT_FALSE(HasFatalFailure()) << "operation " << operation;
  }
}

}  // namespace
}  // namespace quire
