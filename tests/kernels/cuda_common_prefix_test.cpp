// Decode rows that share the keys in front, which a backend may attend to apart: on Hopper once for all rows.
#include "attention_fixture.h"

namespace quire {
namespace {

class CudaCommonPrefixTest : public AttentionTest {
 protected:
  // Rows of which each shares `common` tokens and has some of its own, one at the least.
  std::vector<Chunk> make_rows(const AttentionShape& shape, int num_rows, int common) {
    std::vector<int> lengths;
    std::vector<Chunk> rows;
    for (int i = 0; i < num_rows; ++i) {
      lengths.push_back(common + 1 + 37 * i % 150);
      rows.push_back({i, lengths.back() - 1, lengths.back()});
    }
    make_cache(shape, lengths);
    share(common);
    write_all(context());
    return rows;
  }
  bool attends_apart() const { return GetParam()->variant == std::string_view("sm_90"); }
};

TEST_P(CudaCommonPrefixTest, RowsMatchTheReference) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const int head_size : {64, 80, 96, 128, 256}) {
      for (const auto& [num_rows, common] : {std::pair{4, 128}, {9, 640}, {70, 256}}) {
        SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " " << head_size << " " << num_rows);
        const auto rows = make_rows({dtype, 8, 2, head_size, 16}, num_rows, common);
        expect_matches(rows, {.common = common});
      }
    }
  }
}

TEST_P(CudaCommonPrefixTest, GroupsAndPagesOfEverySize) {
  for (const auto& [heads, kv_heads] : {std::pair{2, 2}, {6, 2}, {5, 1}, {8, 1}}) {
    for (const int block_size : {16, 64, 256}) {
      SCOPED_TRACE(testing::Message() << heads << " of " << kv_heads << ", pages of " << block_size);
      const auto rows = make_rows({DType::kBFloat16, heads, kv_heads, 128, block_size}, 30, 512);
      expect_matches(rows, {.common = 512});
    }
  }
}

// What is shared need not be whole tiles, and prompts may follow, which share nothing.
TEST_P(CudaCommonPrefixTest, AnyLengthBesidePrompts) {
  for (const int common : {16, 112, 144, 496}) {
    SCOPED_TRACE(common);
    auto rows = make_rows({DType::kBFloat16, 8, 2, 128, 16}, 12, common);
    rows.back().begin -= 9;
    rows[10].begin = 0;
    expect_matches(rows, {.common = common});
  }
}

TEST_P(CudaCommonPrefixTest, WithTheOptionsOfALayer) {
  const auto rows = make_rows({DType::kBFloat16, 8, 2, 128, 16}, 20, 384);
  expect_matches(rows, {.soft_cap = 3.0F, .common = 384});
  expect_matches(rows, {.sinks = true, .common = 384});
  expect_matches(rows, {.window = 100, .common = 384});
  expect_matches(rows, {.alibi = true, .common = 384});
  for (const int head_size : {64, 256}) {
    const auto others = make_rows({DType::kBFloat16, 8, 2, head_size, 16}, 20, 256);
    expect_matches(others, {.soft_cap = 3.0F, .common = 256});
  }
}

TEST_P(CudaCommonPrefixTest, IsUsedWhereItPays) {
  const KVCacheView cache = {
      .block_size = 16, .num_kv_heads = 8, .head_size = 128, .dtype = DType::kBFloat16};
  const auto is_used = [&](int num_rows, int common) {
    return kernels().use_cascade_attention(cache, num_rows, common);
  };
  EXPECT_EQ(is_used(32, 1024), attends_apart());
  EXPECT_EQ(is_used(4, 8192), attends_apart());
  EXPECT_FALSE(is_used(32, 1008)) << "too little in all";
  EXPECT_FALSE(is_used(3, 100000)) << "too few rows";
  EXPECT_FALSE(is_used(1000, 128)) << "too little shared";
}

// As it is read once for all rows, what others say of where it lies is not looked at.
TEST_P(CudaCommonPrefixTest, IsReadOnceForAllRows) {
  if (!attends_apart()) GTEST_SKIP() << "each row reads all of its keys";
  for (const int num_rows : {5, 200}) {
    const auto rows = make_rows({DType::kBFloat16, 8, 2, 128, 16}, num_rows, 256);
    const std::vector<double> all = expected(rows, {});
    for (int i = 1; i < num_rows; ++i)
      for (int page = 0; page < 256 / 16; ++page) give_back_page(i, page);  // all NaN
    expect_near(attend(context(), rows, {.common = 256}), all);
  }
}

// Graphs know only whether rows may share keys; how many is read when they are replayed.
TEST_P(CudaCommonPrefixTest, AReplayReadsTheLengthOfItsDay) {
  const DeviceRuntime& runtime = *test_device().runtime;
  const auto rows = make_rows({DType::kBFloat16, 8, 2, 128, 16}, 24, 512);
  const auto batch = make_batch(rows, {.common = 512}, /*padding=*/3);
  sync();
  ASSERT_EQ(runtime.begin_capture(test_device().stream), 0);
  for (int layer = 0; layer < 2; ++layer) {
    plan(context(), *batch);
    attend(context(), *batch);
  }
  void* graph = nullptr;
  ASSERT_EQ(runtime.end_capture(test_device().stream, &graph), 0);
  for (const int common : {512, 0, 130, 256}) {
    for (const size_t count : {rows.size(), size_t{5}, size_t{1}}) {
      SCOPED_TRACE(testing::Message() << common << " of " << count);
      const std::vector<Chunk> some(rows.begin(), rows.begin() + static_cast<long>(count));
      fill_batch(*batch, some);
      batch->common[0] = common;
      ASSERT_EQ(runtime.launch_graph(graph, test_device().stream), 0);
      sync();
      Tensor part(DType::kBFloat16, batch->starts.back(), 8 * 128, 8);
      for (int64_t t = 0; t < part.view().shape[0]; ++t)
        std::memcpy(part.view().at(t), batch->out.view().at(t), 8 * 128 * 2);
      expect_near(part, expected(some, {}));
    }
  }
  runtime.destroy_graph(graph);
}

QUIRE_FOR_CUDA_TABLES(CudaCommonPrefixTest);

}  // namespace
}  // namespace quire
