#include "worker/input_batch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

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
  int64_t slots[2];
  batch.block_table(0).fill_slots(/*row=*/0, /*begin=*/1, /*count=*/2, slots);
  EXPECT_EQ(slots[0], 30 * kBlockSize + 1);
  EXPECT_EQ(slots[1], 31 * kBlockSize);
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

TEST(InputBatchTest, ARequestLongerThanARowIsRefused) {
  InputBatch batch(1, 2, std::vector{kBlockSize});
  auto a = request(1, {1, 2, 3}, {10});
  EXPECT_THROW(batch.add(a), InternalError);
}

// ---- changing places ---------------------------------------------------------------------------------

// Fills all that lies beyond the valid tokens of each row; the value names the place.
int32_t canary(int32_t row, int32_t position) { return -(row * 1000 + position + 1); }
void set_canaries(InputBatch& batch) {
  for (int32_t row = 0; row < batch.size(); ++row) {
    for (int32_t p = batch.num_tokens(row); p < batch.max_model_len(); ++p) {
      batch.token_ids(row)[p] = canary(row, p);
    }
  }
}

TEST(InputBatchTest, ASwapCopiesValidTokensAndNothingBeyond) {
  constexpr int32_t kMaxModelLen = 12;
  const std::vector<std::pair<int32_t, int32_t>> lengths = {{0, 0}, {0, 12}, {12, 0}, {12, 12},
                                                            {3, 7}, {7, 3},  {5, 5},  {1, 12}};
  for (const auto& [m, n] : lengths) {
    InputBatch batch(2, kMaxModelLen, std::vector{kBlockSize, 4});
    std::vector<int32_t> a_tokens(static_cast<size_t>(m)), b_tokens(static_cast<size_t>(n));
    std::iota(a_tokens.begin(), a_tokens.end(), 100);
    std::iota(b_tokens.begin(), b_tokens.end(), 200);
    auto a = request(1, a_tokens, {}), b = request(2, b_tokens, {20, 21});
    a.block_ids = {{10, 11, 12, 13}, {}};
    b.block_ids = {{20, 21}, {22}};
    batch.add(a);
    batch.add(b);
    set_canaries(batch);
    batch.swap_rows(0, 1);
    EXPECT_EQ(tokens_of(batch, 0), b_tokens);
    EXPECT_EQ(tokens_of(batch, 1), a_tokens);
    EXPECT_EQ(a.row, 1);
    EXPECT_EQ(&batch.request(0), &b);
    for (int32_t row : {0, 1}) {
      for (int32_t p = std::max(m, n); p < kMaxModelLen; ++p)
        EXPECT_EQ(batch.token_ids(row)[p], canary(row, p));
    }
    // The longer row's tail moved: no canary of the shorter row came back for it.
    const int32_t long_before = m > n ? 0 : 1;
    const auto& tail = m > n ? a_tokens : b_tokens;
    for (int32_t p = std::min(m, n); p < std::max(m, n); ++p) {
      EXPECT_EQ(batch.token_ids(long_before)[p], tail[static_cast<size_t>(p)]);
    }
    const auto ids = batch.block_table(0).row(1);
    EXPECT_EQ(std::vector<BlockId>(ids.begin(), ids.end()), (std::vector<BlockId>{10, 11, 12, 13}));
    EXPECT_EQ(batch.block_table(0).row(0).size(), 2U);
    EXPECT_EQ(batch.block_table(1).row(0).size(), 1U);
    EXPECT_EQ(batch.block_table(1).row(1).size(), 0U);
  }
}

TEST(InputBatchTest, ARowSwappedWithItselfStays) {
  InputBatch batch(2, 4, std::vector{kBlockSize});
  auto a = request(1, {1, 2}, {10});
  batch.add(a);
  batch.swap_rows(0, 0);
  EXPECT_EQ(tokens_of(batch, 0), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(a.row, 0);
}

TEST(InputBatchTest, OrderIsAPermutationOfRowsWithoutHoles) {
  InputBatch batch(3, 4, std::vector{kBlockSize});
  auto a = request(1, {1}, {10}), b = request(2, {2}, {20}), c = request(3, {3}, {30});
  for (auto* r : {&a, &b, &c}) batch.add(*r);
  EXPECT_THROW(batch.reorder(std::vector<int32_t>{0, 1}), InternalError);
  EXPECT_THROW(batch.reorder(std::vector<int32_t>{1, 2, 1}), InternalError);
  EXPECT_THROW(batch.reorder(std::vector<int32_t>{0, 1, 3}), InternalError);
  batch.remove(b);
  EXPECT_THROW(batch.swap_rows(0, 1), InternalError);
  EXPECT_THROW(batch.reorder(std::vector<int32_t>{0, 1, 2}), InternalError);
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
    free->token_ids = random_ids(length);
    free->block_ids = {random_ids((length + 1) / 2), random_ids((length + 3) / 4)};
    batch.add(*free);
    rows.push_back({&*free, free->token_ids, free->block_ids});
  }
  void append(int32_t row) {
    Model& model = rows[static_cast<size_t>(row)];
    if (batch.num_tokens(row) == kMaxModelLen) return;
    model.tokens.push_back(uniform(1, 1 << 20));
    batch.append_token(row, model.tokens.back());
  }
  // Several rows leave; the last ones fill the holes, lowest first.
  void remove_and_condense() {
    for (int32_t i = uniform(1, 3); i > 0 && !rows.empty(); --i) {
      Model& model = rows[static_cast<size_t>(uniform(0, static_cast<int32_t>(rows.size()) - 1))];
      if (!model.request) continue;
      batch.remove(*model.request);
      ASSERT_EQ(model.request->token_ids, model.tokens);
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
  void reorder() {
    std::vector<int32_t> order(rows.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), rng);
    std::vector<Model> reordered;
    for (int32_t row : order) reordered.push_back(rows[static_cast<size_t>(row)]);
    rows = std::move(reordered);
    batch.reorder(order);
  }
  void expect_same() {
    ASSERT_EQ(batch.size(), static_cast<int32_t>(rows.size()));
    for (int32_t row = 0; row < batch.size(); ++row) {
      const Model& model = rows[static_cast<size_t>(row)];
      ASSERT_EQ(&batch.request(row), model.request);
      ASSERT_EQ(model.request->row, row);
      ASSERT_EQ(tokens_of(batch, row), model.tokens);
      for (size_t group = 0; group < 2; ++group) {
        const auto ids = batch.block_table(group).row(row);
        ASSERT_EQ(std::vector<BlockId>(ids.begin(), ids.end()), model.blocks[group]);
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
    const int32_t kind = uniform(0, 9);
    if (kind < 3 || num_rows == 0) {
      add();
    } else if (kind < 5) {
      append(uniform(0, num_rows - 1));
    } else if (kind == 5) {
      remove_and_condense();
    } else if (kind < 8) {
      const int32_t a = uniform(0, num_rows - 1), b = uniform(0, num_rows - 1);
      batch.swap_rows(a, b);
      std::swap(rows[static_cast<size_t>(a)], rows[static_cast<size_t>(b)]);
    } else {
      reorder();
    }
    expect_same();
    ASSERT_FALSE(HasFatalFailure()) << "operation " << operation;
  }
}

}  // namespace
}  // namespace quire
