#include "attention_fixture.h"

namespace quire {
namespace {

TEST_P(AttentionTest, MatchesTheReferenceForEveryShape) {
  for (const DType dtype : float_types()) {
    for (const int head_size : {16, 64, 80, 96, 128, 256}) {
      for (const int block_size : {16, 32, 64}) {
        SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " " << head_size << " " << block_size);
        make_cache({dtype, 4, 2, head_size, block_size}, {1, 37, 67});
        write_all(context());
        expect_matches({{0, 0, 1}, {1, 0, 37}, {2, 66, 67}});
      }
    }
  }
}

TEST_P(AttentionTest, GroupsOfEverySizeShareAHead) {
  for (const DType dtype : float_types()) {
    for (const int heads : {1, 3, 7, 40}) {
      SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " " << heads);
      make_cache({dtype, heads, 1, 32, 16}, {29});
      write_all(context());
      expect_matches({{0, 0, 29}});
      expect_matches({{0, 28, 29}});
    }
  }
}

TEST_P(AttentionTest, LongContextsCrossPartitions) {
  for (const DType dtype : float_types()) {
    make_cache({dtype, 4, 2, 32, 32}, {256, 257, 530});
    write_all(context());
    expect_matches({{0, 255, 256}, {1, 250, 257}, {2, 0, 3}, {2, 500, 530}});
  }
}

TEST_P(AttentionTest, SoftCapWindowAlibiAndSinks) {
  for (const DType dtype : float_types()) {
    make_cache({dtype, 8, 4, 48, 16}, {21, 300});
    write_all(context());
    const std::vector<Chunk> chunks = {{0, 0, 21}, {1, 280, 300}};
    expect_matches(chunks, {.soft_cap = 2.0F});
    expect_matches(chunks, {.window = 5});
    expect_matches(chunks, {.window = 290});
    expect_matches(chunks, {.alibi = true});
    expect_matches(chunks, {.sinks = true});
    expect_matches(chunks, {.soft_cap = 30.0F, .window = 17, .alibi = true, .sinks = true});
  }
}

// A block manager takes back pages that have left the window, and block 0 is the null block: here, NaN.
TEST_P(AttentionTest, PagesBehindTheWindowAreNotRead) {
  for (const DType dtype : float_types()) {
    make_cache({dtype, 4, 2, 32, 16}, {330});
    write_all(context());
    for (int page = 0; page < 18; ++page) give_back_page(0, page);
    expect_matches({{0, 320, 330}}, {.window = 30});
  }
}

// Whatever the tiles of a chunk have in common, pages below the window of its first row are not among it:
// other requests write there.
TEST_P(AttentionTest, PagesBelowTheFirstWindowChangeNoBit) {
  constexpr int kLength = 700;
  ThreadPool pool(3);
  for (const DType dtype : float_types()) {
    for (const int block_size : {16, 64, 256}) {
      make_cache({dtype, 2, 1, 32, block_size}, {kLength, 40});
      set_workspace(kernels().attention_workspace_bytes(4, kLength, 2, 1, 32));
      write_all(context());
      const std::vector<int32_t> pages = request(0).pages;
      for (const int window : {1, 16, 40, 256, 300}) {
        for (const int begin : {699, 640, 310}) {
          const std::vector<Chunk> chunks = {{0, begin, std::min(begin + 130, kLength)}, {1, 39, 40}};
          set_pages(0, pages);
          const Tensor intact = attend(context(), chunks, {.window = window});
          for (int page = 0; page < (begin - window + 1) / block_size; ++page) give_back_page(0, page);
          for (const LaunchContext& ctx : {context(), context(&pool)}) {
            const Tensor poisoned = attend(ctx, chunks, {.window = window});
            for (int64_t row = 0; row < intact.view().shape[0]; ++row) {
              ASSERT_EQ(poisoned.row_bytes(row), intact.row_bytes(row))
                  << dtype_name(dtype) << " block " << block_size << " window " << window << " token "
                  << begin + row;
            }
          }
        }
      }
    }
  }
}

// A block's pages in all layers of a group lie next to each other, so a layer's pages lie apart.
TEST_P(AttentionTest, LayersMayBeInterleavedPageByPage) {
  constexpr size_t kLayers = 3, kLayer = 1;
  for (const DType dtype : float_types()) {
    make_cache({dtype, 4, 2, 80, 32}, {300, 33});
    write_all(context());
    const std::vector<Chunk> chunks = {{0, 270, 300}, {1, 32, 33}};
    const Tensor expected = attend(context(), chunks, {});
    KVCacheView layer = cache();
    const size_t page_bytes = (kernels().kv_page_bytes(32, 2, 80, dtype) + 63) / 64 * 64;
    const Memory memory(kLayers * page_bytes * static_cast<size_t>(layer.num_blocks));
    layer.data = memory.data() + kLayer * page_bytes;
    layer.page_stride_bytes = static_cast<int64_t>(kLayers * page_bytes);
    use_cache(layer);
    write_all(context());
    const Tensor actual = attend(context(), chunks, {});
    for (int64_t row = 0; row < expected.view().shape[0]; ++row)
      ASSERT_EQ(actual.row_bytes(row), expected.row_bytes(row)) << dtype_name(dtype) << " row " << row;
    for (size_t i = 0; i < memory.bytes(); ++i) {
      if (i / page_bytes % kLayers == kLayer) continue;
      ASSERT_EQ(memory.data()[i], std::byte{0xFF}) << "another layer's byte " << i;
    }
  }
}

TEST_P(AttentionTest, UnwrittenSlotsMayHoldNaN) {
  for (const DType dtype : float_types()) {
    for (const int block_size : {16, 64}) {
      for (const int length : {1, 2, 15, 17, 33, 63, 64}) {
        make_cache({dtype, 2, 1, 16, block_size}, {64});
        write(context(), request(0), 0, length);
        expect_matches({{0, 0, length}});
      }
    }
  }
}

TEST_P(AttentionTest, NegativeSlotsAreSkipped) {
  make_cache({DType::kFloat32, 2, 1, 16, 16}, {2});
  Array<int32_t> slots = {-1, -1};
  const TensorView rows = request(0).keys.view().heads(1, 16);
  KVCacheView nowhere = cache();
  nowhere.data = nullptr;  // a write would crash
  kernels().write_kv_cache(context(), nowhere, rows, rows, int_view(slots));
}

// Prefill, chunked prefill and decode; alone, together, and on any number of threads.
TEST_P(AttentionTest, ARowDoesNotDependOnItsBatchBitwise) {
  if (is_cuda()) GTEST_SKIP() << "split KV depends on the batch";
  ThreadPool pool(3);
  for (const DType dtype : float_types()) {
    for (const Options& options : {Options{}, Options{.soft_cap = 20, .window = 40, .sinks = true}}) {
      const Shape shape = {dtype, 6, 2, 80, 32};
      make_cache(shape, {600, 45, 1});
      set_workspace(
          kernels().attention_workspace_bytes(4, 600, shape.heads, shape.kv_heads, shape.head_size));
      write_all(context(&pool));
      const Tensor whole = attend(context(), {{0, 0, 600}}, options);
      const auto expect_same = [&](const Tensor& part, int64_t row, int64_t token) {
        ASSERT_EQ(part.row_bytes(row), whole.row_bytes(token)) << dtype_name(dtype) << " token " << token;
      };
      for (const int begin : {0, 1, 255, 256, 511, 599}) {
        const Tensor one = attend(context(&pool), {{0, begin, begin + 1}}, options);
        expect_same(one, 0, begin);
      }
      const Tensor chunk = attend(context(&pool), {{1, 0, 45}, {0, 250, 310}, {2, 0, 1}}, options);
      for (int i = 0; i < 60; ++i) expect_same(chunk, 45 + i, 250 + i);
      const Tensor decode = attend(context(), {{0, 599, 600}, {1, 44, 45}}, options);
      expect_same(decode, 0, 599);
    }
  }
}

// What a later token of the same chunk left in the cache changes nothing for an earlier one.
TEST_P(AttentionTest, StepByStepIsTheWholePromptBitwise) {
  if (is_cuda()) GTEST_SKIP() << "split KV depends on the batch";
  for (const DType dtype : float_types()) {
    make_cache({dtype, 4, 2, 32, 16}, {40});
    std::vector<std::string> rows;
    for (int t = 0; t < 40; ++t) {
      write(context(), request(0), t, t + 1);
      rows.push_back(attend(context(), {{0, t, t + 1}}, {}).row_bytes(0));
    }
    const Tensor whole = attend(context(), {{0, 0, 40}}, {});
    for (int t = 0; t < 40; ++t) ASSERT_EQ(rows[static_cast<size_t>(t)], whole.row_bytes(t)) << t;
  }
}

TEST_P(AttentionTest, SaysWhatItCannotDo) {
  AttentionLayer layer = {.dtype = DType::kBFloat16, .head_size = 128, .block_size = 32};
  EXPECT_EQ(kernels().select_attention(layer), nullptr);
  layer.head_size = 72;
  EXPECT_NE(kernels().select_attention(layer), nullptr);
  layer = {.dtype = DType::kBFloat16, .head_size = 128, .block_size = 48};
  EXPECT_NE(kernels().select_attention(layer), nullptr);
  layer = {.dtype = DType::kFloat16, .head_size = 128, .block_size = 16};
  EXPECT_EQ(kernels().select_attention(layer) == nullptr, is_cuda());
}

QUIRE_FOR_EVERY_TABLE(AttentionTest);

}  // namespace
}  // namespace quire
