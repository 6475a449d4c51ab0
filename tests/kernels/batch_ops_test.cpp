#include "kernel_test.h"

namespace quire {
namespace {

class BatchOpsTest : public KernelTest {
 protected:
  const BatchOps& batch() const { return *kernels().batch; }
  // A step without rows.
  void write_rows(const RowWriteArgs& writes) {
    Array<int32_t> starts(1, -7);
    PrepareInputsArgs args;
    args.row_writes = writes;
    args.padded_query_start_loc = starts.data();
    batch().prepare_inputs(context(), args);
    EXPECT_EQ(read(starts), std::vector<int32_t>{0});
  }
};

TEST_P(BatchOpsTest, WritesPartsOfRowsOfSeveralTables) {
  constexpr int64_t kStrides[] = {5, 7};
  Array<int32_t> first(4 * 5, -1), second(3 * 7, -1);
  const Array<int32_t> values = {10, 11, 12, 20, 30, 31, 32, 33, 34, 35, 36};
  const Array<RowWrite> writes = {{.table = 0, .row = 2, .begin = 1, .count = 3, .first = 0},
                                  {.table = 1, .row = 0, .begin = 6, .count = 1, .first = 3},
                                  {.table = 0, .row = 3, .begin = 0, .count = 0, .first = 4},
                                  {.table = 1, .row = 2, .begin = 0, .count = 7, .first = 4}};
  RowWriteArgs args;
  args.tables[0] = first.data();
  args.tables[1] = second.data();
  args.strides[0] = kStrides[0];
  args.strides[1] = kStrides[1];
  args.writes = writes.data();
  args.values = values.data();
  args.num_writes = 4;
  args.num_values = static_cast<int32_t>(values.size());
  write_rows(args);
  std::vector<int32_t> expected_first(20, -1), expected_second(21, -1);
  for (int i = 0; i < 3; ++i) expected_first[static_cast<size_t>(2 * 5 + 1 + i)] = 10 + i;
  expected_second[6] = 20;
  for (int i = 0; i < 7; ++i) expected_second[static_cast<size_t>(2 * 7 + i)] = 30 + i;
  EXPECT_EQ(read(first), expected_first);
  EXPECT_EQ(read(second), expected_second);
}

TEST_P(BatchOpsTest, WritesLongRowsAndMany) {
  constexpr int32_t kRows = 300, kLong = 5000;
  Array<int32_t> table(static_cast<size_t>(kRows) * kLong, -1), values;
  Array<RowWrite> writes;
  for (int32_t row = 0; row < kRows; ++row) {
    const int32_t count = row == 17 ? kLong : row % 5;
    writes.push_back({.table = 0,
                      .row = row,
                      .begin = row == 17 ? 0 : row,
                      .count = count,
                      .first = static_cast<int32_t>(values.size())});
    for (int32_t i = 0; i < count; ++i) values.push_back(row * 10000 + i);
  }
  RowWriteArgs args;
  args.tables[0] = table.data();
  args.strides[0] = kLong;
  args.writes = writes.data();
  args.values = values.data();
  args.num_writes = kRows;
  args.num_values = static_cast<int32_t>(values.size());
  write_rows(args);
  sync();
  for (int32_t row = 0; row < kRows; ++row) {
    const RowWrite& write = writes[static_cast<size_t>(row)];
    for (int32_t i = 0; i < kLong; ++i) {
      const bool written = i >= write.begin && i < write.begin + write.count;
      ASSERT_EQ(table[static_cast<size_t>(row) * kLong + static_cast<size_t>(i)],
                written ? row * 10000 + i - write.begin : -1)
          << row << " " << i;
    }
  }
}

// A prefill of three tokens, a decode, a chunk that begins within a block, and padding after them.
TEST_P(BatchOpsTest, PrepareInputsFillsTheStep) {
  constexpr int32_t kTokensStride = 10;
  Array<int32_t> tokens(4 * kTokensStride);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(100 + i);
  const Array<int32_t> query_start_loc = {0, 3, 4, 6}, num_computed = {0, 7, 3}, states = {2, 0, 3};
  // The blocks of rows 1, none, 0 and 2.
  const Array<int32_t> blocks_of_4 = {6, 7, 0, -1, -1, -1, 5, 9, 0, 8, 3, 0};
  const Array<int32_t> blocks_of_2 = {3, 4, 5, 6, -1, -1, -1, -1, 1, 2, 0, 0, 7, 8, 9, 0};
  Array<int32_t> input_ids(8, -7), positions(8, -7), starts(6, -7), seq_lens(5, -7), padded_states(5, -7);
  Array<int64_t> mapping_of_4(8, -7), mapping_of_2(8, -7);
  PrepareInputsArgs args;
  args.query_start_loc = query_start_loc.data();
  args.num_computed = num_computed.data();
  args.state_indices = states.data();
  args.padded_state_indices = padded_states.data();
  args.num_rows = 3;
  args.num_tokens = 6;
  args.padded_rows = 5;
  args.padded_tokens = 8;
  args.tokens = tokens.data();
  args.tokens_stride = kTokensStride;
  args.input_ids = input_ids.data();
  args.positions = positions.data();
  args.padded_query_start_loc = starts.data();
  args.seq_lens = seq_lens.data();
  args.groups[0] = {.block_table = blocks_of_4.data(),
                    .block_table_stride = 3,
                    .block_size = 4,
                    .slot_mapping = mapping_of_4.data()};
  args.groups[1] = {.block_table = blocks_of_2.data(),
                    .block_table_stride = 4,
                    .block_size = 2,
                    .slot_mapping = mapping_of_2.data()};
  args.num_groups = 2;
  Array<int32_t> unpadded = {-7};
  args.unpadded_tokens = unpadded.data();
  batch().prepare_inputs(context(), args);
  EXPECT_EQ(read(unpadded), std::vector<int32_t>{6});
  EXPECT_EQ(read(input_ids), (std::vector<int32_t>{120, 121, 122, 107, 133, 134, 0, 0}));
  EXPECT_EQ(read(positions), (std::vector<int32_t>{0, 1, 2, 7, 3, 4, 0, 0}));
  EXPECT_EQ(read(starts), (std::vector<int32_t>{0, 3, 4, 6, 6, 6}));
  EXPECT_EQ(read(seq_lens), (std::vector<int32_t>{3, 8, 5, 0, 0}));
  EXPECT_EQ(read(padded_states), (std::vector<int32_t>{2, 0, 3, 0, 0}));
  EXPECT_EQ(read(mapping_of_4), (std::vector<int64_t>{20, 21, 22, 31, 35, 12, -1, -1}));
  EXPECT_EQ(read(mapping_of_2), (std::vector<int64_t>{2, 3, 4, 13, 17, 18, -1, -1}));
}

TEST_P(BatchOpsTest, PrepareInputsTakesManyRowsAndTokens) {
  constexpr int32_t kRows = 257, kPaddedRows = 320, kStride = 4096;
  Array<int32_t> starts = {0}, num_computed, states, tokens(static_cast<size_t>(kRows) * kStride), table;
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i);
  for (int32_t r = 0; r < kRows; ++r) {
    starts.push_back(starts.back() + (r == 100 ? 3000 : r % 3 + 1));
    num_computed.push_back(r * 5 % 1000);
    states.push_back(kRows - 1 - r);
    for (int32_t block = 0; block < kStride / 16; ++block) table.push_back((kRows - 1 - r) * 1000 + block);
  }
  const int32_t num_tokens = starts.back(), padded_tokens = num_tokens + 77;
  Array<int32_t> input_ids(static_cast<size_t>(padded_tokens), -7), positions = input_ids;
  Array<int32_t> padded_starts(kPaddedRows + 1, -7), seq_lens(kPaddedRows, -7);
  Array<int32_t> padded_states(kPaddedRows, -7);
  Array<int64_t> mapping(static_cast<size_t>(padded_tokens), -7);
  PrepareInputsArgs args;
  args.query_start_loc = starts.data();
  args.num_computed = num_computed.data();
  args.state_indices = states.data();
  args.padded_state_indices = padded_states.data();
  args.num_rows = kRows;
  args.num_tokens = num_tokens;
  args.padded_rows = kPaddedRows;
  args.padded_tokens = padded_tokens;
  args.tokens = tokens.data();
  args.tokens_stride = kStride;
  args.input_ids = input_ids.data();
  args.positions = positions.data();
  args.padded_query_start_loc = padded_starts.data();
  args.seq_lens = seq_lens.data();
  args.groups[0] = {.block_table = table.data(),
                    .block_table_stride = kStride / 16,
                    .block_size = 16,
                    .slot_mapping = mapping.data()};
  args.num_groups = 1;
  batch().prepare_inputs(context(), args);
  sync();
  for (int32_t r = 0; r < kPaddedRows; ++r) {
    const auto at = static_cast<size_t>(std::min(r, kRows));
    ASSERT_EQ(padded_starts[static_cast<size_t>(r)], starts[at]) << r;
    ASSERT_EQ(seq_lens[static_cast<size_t>(r)],
              r < kRows ? num_computed[at] + starts[at + 1] - starts[at] : 0)
        << r;
    ASSERT_EQ(padded_states[static_cast<size_t>(r)], r < kRows ? states[at] : 0) << r;
    if (r >= kRows) continue;
    for (int32_t t = starts[at]; t < starts[at + 1]; ++t) {
      const int32_t position = num_computed[at] + t - starts[at];
      const auto token = static_cast<size_t>(t);
      ASSERT_EQ(positions[token], position) << r;
      ASSERT_EQ(input_ids[token], states[at] * kStride + position) << r;
      ASSERT_EQ(mapping[token], int64_t{r * 1000 + position / 16} * 16 + position % 16) << r;
    }
  }
  ASSERT_EQ(padded_starts[kPaddedRows], num_tokens);
  for (auto t = static_cast<size_t>(num_tokens); t < static_cast<size_t>(padded_tokens); ++t) {
    ASSERT_EQ(input_ids[t], 0);
    ASSERT_EQ(positions[t], 0);
    ASSERT_EQ(mapping[t], -1);
  }
}

// All that a step reads arrives with it: the tokens and blocks it is the first to know, and where they go.
TEST_P(BatchOpsTest, PrepareInputsBringsAndWritesBeforeItReads) {
  constexpr int32_t kRows = 40, kTokensStride = 64, kBlocks = 16;  // 64 tokens in blocks of 4
  struct Sent {
    int32_t query_start_loc[kRows + 4], num_computed[kRows], states[kRows];
    RowWrite writes[3 * kRows];
    int32_t values[kRows * (kTokensStride + kBlocks)];
  };
  static_assert(sizeof(Sent) % 16 == 0);
  Array<Sent> from(1), to(1);
  Array<int32_t> tokens(kRows * kTokensStride, -1), table(kRows * kBlocks, -1);
  int32_t num_values = 0, num_writes = 0, num_tokens = 0;
  Sent& sent = from[0];
  std::vector<int32_t> ids, positions;
  std::vector<int64_t> mapping;
  const auto write = [&](int32_t which, int32_t row, int32_t begin, int32_t count, int32_t first) {
    sent.writes[num_writes++] = {which, row, begin, count, num_values};
    for (int32_t i = 0; i < count; ++i) sent.values[num_values++] = first + i;
  };
  for (int32_t r = 0; r < kRows; ++r) {
    const int32_t computed = r % 9, count = r % 5 == 0 ? 40 : 1, state = kRows - 1 - r;
    sent.query_start_loc[r] = num_tokens;
    sent.num_computed[r] = computed;
    sent.states[r] = state;
    write(0, state, computed, count, r * 1000);
    write(1, state, 0, (computed + count + 3) / 4, r * 100);
    if (r % 7 == 0) write(0, state, 0, 0, 0);  // nothing
    for (int32_t i = 0; i < count; ++i) {
      ids.push_back(r * 1000 + i);
      positions.push_back(computed + i);
      mapping.push_back((r * 100 + (computed + i) / 4) * 4 + (computed + i) % 4);
    }
    num_tokens += count;
  }
  sent.query_start_loc[kRows] = num_tokens;
  const auto max_tokens = static_cast<size_t>(num_tokens);
  Array<int32_t> input_ids(max_tokens, -7), out_positions(max_tokens, -7), starts(kRows + 1, -7),
      seq_lens(kRows, -7), padded_states(kRows, -7);
  Array<int64_t> slot_mapping(max_tokens, -7);
  PrepareInputsArgs args;
  args.bytes = {to.data(), from.data(), sizeof(Sent)};
  args.row_writes.tables[0] = tokens.data();
  args.row_writes.strides[0] = kTokensStride;
  args.row_writes.tables[1] = table.data();
  args.row_writes.strides[1] = kBlocks;
  args.row_writes.writes = to[0].writes;
  args.row_writes.values = to[0].values;
  args.row_writes.num_writes = num_writes;
  args.row_writes.num_values = num_values;
  args.query_start_loc = to[0].query_start_loc;
  args.num_computed = to[0].num_computed;
  args.state_indices = to[0].states;
  args.padded_state_indices = padded_states.data();
  args.num_rows = args.padded_rows = kRows;
  args.num_tokens = args.padded_tokens = num_tokens;
  args.tokens = tokens.data();
  args.tokens_stride = kTokensStride;
  args.input_ids = input_ids.data();
  args.positions = out_positions.data();
  args.padded_query_start_loc = starts.data();
  args.seq_lens = seq_lens.data();
  args.groups[0] = {table.data(), kBlocks, 4, slot_mapping.data()};
  args.num_groups = 1;
  batch().prepare_inputs(context(), args);
  EXPECT_EQ(read(input_ids), ids);
  EXPECT_EQ(read(out_positions), positions);
  EXPECT_EQ(read(slot_mapping), mapping);
  EXPECT_EQ(starts[kRows], num_tokens);
  for (size_t r = 0; r < kRows; ++r)
    EXPECT_EQ(seq_lens[r], positions[static_cast<size_t>(starts[r + 1]) - 1] + 1);
}

QUIRE_FOR_CUDA_TABLES(BatchOpsTest);

}  // namespace
}  // namespace quire
