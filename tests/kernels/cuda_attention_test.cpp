// What the CUDA backend's attention has beyond the contract's common tests: several kernels, split KV by a
// plan, captured launches, and the fused rotary embedding. Each comparison in expect_matches is made with
// every kernel that can do it.
#include <string>

#include "attention/selector.h"
#include "attention_fixture.h"

namespace quire {
namespace {

class CudaAttentionTest : public AttentionTest {
 protected:
  static constexpr DType k16BitTypes[] = {DType::kBFloat16, DType::kFloat16};
  static constexpr int kHeadSizes[] = {64, 80, 96, 128, 256};
};

TEST_P(CudaAttentionTest, DecodeRowsComeBeforeChunks) {
  for (const DType dtype : k16BitTypes) {
    for (const int head_size : kHeadSizes) {
      for (const int block_size : {16, 32, 64}) {
        SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " " << head_size << " " << block_size);
        make_cache({dtype, 4, 2, head_size, block_size}, {1, 130, 64, 65, 200, 33});
        write_all(context());
        expect_matches({{0, 0, 1}, {1, 129, 130}, {2, 63, 64}, {3, 0, 65}, {4, 150, 200}, {5, 32, 33}});
      }
    }
  }
}

TEST_P(CudaAttentionTest, PromptsCrossTilesOfQueriesAndKeys) {
  for (const DType dtype : k16BitTypes) {
    for (const int head_size : kHeadSizes) {
      SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " " << head_size);
      make_cache({dtype, 2, 1, head_size, 16}, {257, 400, 128, 129});
      write_all(context());
      expect_matches({{0, 0, 257}, {1, 301, 400}, {2, 0, 128}, {3, 127, 129}});
    }
  }
}

// Tiles of keys come from the last one to the first. Scores that grow a little from one to the next are taken
// off the highest of some time before, those that grow more are not.
TEST_P(CudaAttentionTest, ScoresMayGrowFromTileToTile) {
  for (const DType dtype : k16BitTypes) {
    for (const int head_size : kHeadSizes) {
      SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " " << head_size);
      make_cache({dtype, 4, 2, head_size, 16}, {1150});
      const float factors[] = {7.0F, 3.5F, 6.5F, 6.0F, 2.2F, 0.9F, 1.8F, 1.2F, 0.2F};
      for (int tile = 0; tile < 9; ++tile)
        scale_keys(0, 128 * tile, std::min(128 * (tile + 1), 1150), factors[tile]);
      write_all(context());
      expect_matches({{0, 1000, 1150}});
      expect_matches({{0, 1000, 1150}}, {.sinks = true});
    }
  }
}

// What is contiguous of a page, or of a tile, is copied in one go.
TEST_P(CudaAttentionTest, PagesOfEverySizeFillTiles) {
  for (const int head_size : {64, 128}) {
    for (const int block_size : {16, 32, 64, 128, 256}) {
      SCOPED_TRACE(testing::Message() << head_size << " " << block_size);
      make_cache({DType::kBFloat16, 4, 2, head_size, block_size}, {600, 129, 40});
      write_all(context());
      const std::vector<Chunk> chunks = {{0, 520, 600}, {1, 0, 129}, {2, 39, 40}};
      expect_matches(chunks, {});
      expect_matches(chunks, {.window = 200});
    }
  }
}

// More items than a device has multiprocessors, so that blocks ask for further ones, layer after layer.
TEST_P(CudaAttentionTest, PromptsOfManyItemsAreAttendedToInEveryLayer) {
  for (const int head_size : {64, 128}) {
    make_cache({DType::kBFloat16, 32, 8, head_size, 16}, {400, 120, 300, 1300});
    write_all(context());
    const std::vector<Chunk> chunks = {{0, 0, 400}, {1, 0, 120}, {2, 0, 300}, {3, 1000, 1300}};
    expect_matches(chunks);
    for (const char* blocks : blocks_of("wgmma")) {
      const ForcedBlocks forced(blocks);
      const auto batch = make_batch(chunks, {});
      plan(context(), *batch);
      attend(context(), *batch);
      std::vector<std::string> first;
      for (int64_t t = 0; t < batch->out.view().shape[0]; ++t) first.push_back(batch->out.row_bytes(t));
      const size_t row_bytes = static_cast<size_t>(32 * head_size + 8) * 2;
      for (int layer = 1; layer < 4; ++layer) {
        std::memset(batch->out.view().data, 0xFF, first.size() * row_bytes);
        attend(context(), *batch);
        for (size_t t = 0; t < first.size(); ++t)
          ASSERT_EQ(batch->out.row_bytes(static_cast<int64_t>(t)), first[t])
              << head_size << ", " << blocks << " blocks, layer " << layer << " token " << t;
      }
    }
  }
}

// Two blocks of a cluster send each other halves of the same keys; each computes what it would alone.
TEST_P(CudaAttentionTest, BlocksThatShareKeysChangeNoBit) {
  for (const DType dtype : k16BitTypes) {
    for (const int head_size : {128, 256}) {
      for (const int block_size : {16, 64, 256}) {
        make_cache({dtype, 32, 8, head_size, block_size}, {1150, 500, 40, 129});
        write_all(context());
        const std::vector<Chunk> chunks = {{0, 0, 1150}, {1, 301, 500}, {2, 0, 40}, {3, 127, 129}};
        for (const Options& options : {Options{}, Options{.window = 200}, Options{.sinks = true}}) {
          std::vector<Tensor> outs;
          for (const char* blocks : blocks_of("wgmma")) {
            const ForcedBlocks forced(blocks);
            outs.push_back(attend(context(), chunks, options));
          }
          for (int64_t t = 0; t < outs[0].view().shape[0]; ++t)
            ASSERT_EQ(outs[1].row_bytes(t), outs[0].row_bytes(t))
                << dtype_name(dtype) << ", " << head_size << ", pages of " << block_size << ", token " << t;
        }
      }
    }
  }
}

// Those of one head are more than a part of the L2 cache, so that few heads, or one, are read at a time.
TEST_P(CudaAttentionTest, HeadsOfLongSequencesTakeTurns) {
  make_cache({DType::kBFloat16, 6, 3, 256, 16}, {11000, 300});
  write_all(context());
  expect_matches({{0, 10950, 11000}, {1, 200, 300}});
}

TEST_P(CudaAttentionTest, GroupsOfEverySizeFillTheTile) {
  for (const DType dtype : k16BitTypes) {
    for (const int group : {1, 2, 4, 5, 7, 8, 9, 16, 20, 40, 130}) {
      for (const int head_size : kHeadSizes) {
        SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " " << group << " " << head_size);
        make_cache({dtype, 2 * group, 2, head_size, 16}, {300, 150, 21});
        write_all(context());
        expect_matches({{0, 299, 300}, {1, 149, 150}, {2, 0, 21}});
        if (group == 9 || group == 16)
          expect_matches({{0, 299, 300}, {1, 149, 150}}, {.soft_cap = 30.0F, .alibi = true, .sinks = true});
      }
    }
  }
}

TEST_P(CudaAttentionTest, OneLongRowIsSplitOverAllBlocks) {
  for (const DType dtype : k16BitTypes) {
    for (const int head_size : {64, 128, 256}) {
      SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " " << head_size);
      make_cache({dtype, 8, 2, head_size, 16}, {5000});
      write_all(context());
      expect_matches({{0, 4999, 5000}});
      expect_matches({{0, 4990, 5000}});
    }
  }
}

TEST_P(CudaAttentionTest, UnevenRowsAreCutIntoEqualPieces) {
  for (const int head_size : {80, 128}) {
    SCOPED_TRACE(head_size);
    std::vector<int> lengths;
    std::vector<Chunk> chunks;
    for (int r = 0; r < 70; ++r) {
      lengths.push_back(r == 31 ? 3000 : r * 37 % 301 + 1);
      chunks.push_back({r, lengths.back() - 1, lengths.back()});
    }
    make_cache({DType::kBFloat16, 8, 4, head_size, 32}, lengths);
    write_all(context());
    expect_matches(chunks);
    expect_matches(chunks, {.window = 100, .sinks = true});
  }
}

TEST_P(CudaAttentionTest, OptionsTogetherAndAlone) {
  for (const DType dtype : k16BitTypes) {
    for (const int head_size : {64, 96, 128, 256}) {
      SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " " << head_size);
      make_cache({dtype, 8, 4, head_size, 16}, {21, 500, 330});
      write_all(context());
      for (const std::vector<Chunk>& chunks :
           {std::vector<Chunk>{{0, 0, 21}, {1, 460, 500}, {2, 329, 330}},
            std::vector<Chunk>{{0, 20, 21}, {1, 499, 500}, {2, 329, 330}}}) {
        expect_matches(chunks, {.soft_cap = 2.0F});
        expect_matches(chunks, {.window = 5});
        expect_matches(chunks, {.window = 300});
        expect_matches(chunks, {.alibi = true});
        expect_matches(chunks, {.sinks = true});
        expect_matches(chunks, {.soft_cap = 30.0F, .window = 70, .alibi = true, .sinks = true});
      }
    }
  }
}

// Unwritten slots are NaN, and the pages below the window are given back: what is left in them, too.
TEST_P(CudaAttentionTest, NothingBesideTheWindowAndTheSequenceIsRead) {
  for (const DType dtype : k16BitTypes) {
    for (const int head_size : kHeadSizes) {
      for (const int block_size : {16, 64}) {
        for (const int length : {1, 15, 17, 127, 129, 330}) {
          SCOPED_TRACE(testing::Message() << head_size << " " << block_size << " " << length);
          make_cache({dtype, 4, 2, head_size, block_size}, {400});
          write(context(), request(0), 0, length);
          constexpr int kWindow = 30;
          const int begin = std::max(0, length - 10);
          for (int page = 0; page < (begin - kWindow + 1) / block_size; ++page) give_back_page(0, page);
          expect_matches({{0, begin, length}}, {.window = kWindow});
          expect_matches({{0, length - 1, length}}, {.window = kWindow});
        }
      }
    }
  }
}

TEST_P(CudaAttentionTest, PaddingRowsWriteNothing) {
  constexpr int kPadding = 5;
  for (const int head_size : {64, 80, 128}) {
    for (const char* kernel : forced_kernels()) {
      const ForcedKernel forced(kernel);
      for (const std::vector<Chunk>& chunks :
           {std::vector<Chunk>{{0, 99, 100}, {1, 19, 20}}, std::vector<Chunk>{{0, 99, 100}, {1, 0, 20}}}) {
        SCOPED_TRACE(testing::Message() << head_size << " " << kernel << " " << chunks[1].length());
        make_cache({DType::kBFloat16, 4, 2, head_size, 16}, {100, 20});
        write_all(context());
        const Tensor alone = attend(context(), chunks, {});
        const auto batch = make_batch(chunks, {}, kPadding);
        plan(context(), *batch);
        attend(context(), *batch);
        const int64_t tokens = alone.view().shape[0];
        for (int64_t t = 0; t < tokens; ++t) EXPECT_EQ(batch->out.row_bytes(t), alone.row_bytes(t)) << t;
        for (int64_t t = tokens; t < tokens + kPadding; ++t)
          EXPECT_EQ(batch->out.row_bytes(t), std::string(batch->out.row_bytes(t).size(), '\xFF')) << t;
      }
    }
  }
}

// A graph's rows are padded to a power of two, or less. Long rows are cut alike nevertheless.
TEST_P(CudaAttentionTest, LongRowsAreTheSameInAGraph) {
  make_cache({DType::kBFloat16, 4, 2, 64, 16}, {20000, 3000, 3000});
  write_all(context());
  const std::vector<Chunk> chunks = {{0, 19999, 20000}, {1, 2999, 3000}, {2, 2999, 3000}};
  const Tensor alone = attend(context(), chunks, {});
  const auto batch = make_batch(chunks, {}, /*padding=*/1);
  plan(context(), *batch);
  attend(context(), *batch);
  for (int64_t t = 0; t < 3; ++t) EXPECT_EQ(batch->out.row_bytes(t), alone.row_bytes(t)) << t;
}

// The same plan serves every layer, and the order in which blocks finish changes nothing.
TEST_P(CudaAttentionTest, EveryLayerOfAStepIsBitwiseTheSame) {
  make_cache({DType::kBFloat16, 8, 2, 128, 16}, {3000, 170, 1, 40});
  write_all(context());
  const auto batch = make_batch({{0, 2999, 3000}, {1, 169, 170}, {2, 0, 1}, {3, 0, 40}}, {});
  plan(context(), *batch);
  std::vector<std::string> first;
  for (int layer = 0; layer < 20; ++layer) {
    attend(context(), *batch);
    for (int64_t t = 0; t < batch->out.view().shape[0]; ++t) {
      if (layer == 0) first.push_back(batch->out.row_bytes(t));
      ASSERT_EQ(batch->out.row_bytes(t), first[static_cast<size_t>(t)])
          << "layer " << layer << " token " << t;
    }
    std::memset(batch->out.view().data, 0xFF,
                static_cast<size_t>(batch->out.view().shape[0] * (8 * 128 + 8) * 2));
  }
}

// The environment is asked when the layer is built, and what it says later changes no launch.
TEST_P(CudaAttentionTest, ALayerKeepsTheKernelThatWasChosenForIt) {
  make_cache({DType::kBFloat16, 8, 2, 128, 16}, {300, 40});
  write_all(context());
  const std::vector<Chunk> chunks = {{0, 299, 300}, {1, 0, 40}};
  for (const char* kernel : forced_kernels()) {
    SCOPED_TRACE(kernel);
    std::unique_ptr<Batch> batch;
    std::vector<std::string> expected;
    {
      const ForcedKernel forced(kernel);
      const Tensor out = attend(context(), chunks, {});
      for (int64_t t = 0; t < out.view().shape[0]; ++t) expected.push_back(out.row_bytes(t));
      batch = make_batch(chunks, {});
    }
    for (const char* later : forced_kernels()) {
      const ForcedKernel forced(later);
      plan(context(), *batch);
      attend(context(), *batch);
      sync();
      for (int64_t t = 0; t < batch->out.view().shape[0]; ++t)
        ASSERT_EQ(batch->out.row_bytes(t), expected[static_cast<size_t>(t)]) << later << " token " << t;
    }
  }
}

// A captured launch knows only bounds; lengths, tokens and pages are read when it is replayed.
TEST_P(CudaAttentionTest, AReplayReadsTheLengthsOfItsDay) {
  const DeviceRuntime& runtime = *test_device().runtime;
  for (const char* kernel : forced_kernels()) {
    SCOPED_TRACE(kernel);
    const ForcedKernel forced(kernel);
    make_cache({DType::kBFloat16, 8, 2, 128, 16}, {900, 300, 64, 220});
    write_all(context());
    const std::vector<Chunk> bounds = {{0, 899, 900}, {1, 299, 300}, {2, 63, 64}, {3, 0, 220}};
    const auto batch = make_batch(bounds, {}, /*padding=*/2);
    sync();
    ASSERT_EQ(runtime.begin_capture(test_device().stream), 0);
    plan(context(), *batch);
    attend(context(), *batch);
    void* graph = nullptr;
    ASSERT_EQ(runtime.end_capture(test_device().stream, &graph), 0);
    ASSERT_NE(graph, nullptr);
    for (const std::vector<Chunk>& chunks :
         {bounds, std::vector<Chunk>{{2, 4, 5}, {0, 850, 851}, {1, 0, 1}, {3, 20, 220}},
          std::vector<Chunk>{{1, 99, 100}, {1, 298, 299}, {2, 62, 63}, {0, 700, 701}, {3, 0, 70}}}) {
      fill_batch(*batch, chunks);
      ASSERT_EQ(runtime.launch_graph(graph, test_device().stream), 0);
      sync();
      const std::vector<double> all = expected(chunks, {});
      Tensor part(DType::kBFloat16, batch->starts.back(), 8 * 128, 8);
      for (int64_t t = 0; t < part.view().shape[0]; ++t)
        std::memcpy(part.view().at(t), batch->out.view().at(t), 8 * 128 * 2);
      expect_near(part, all);
    }
    runtime.destroy_graph(graph);
  }
}

// One op, or those that it is made of: every bit is the same.
TEST_P(CudaAttentionTest, FusedRotaryEmbeddingIsItsOps) {
  constexpr int kTokens = 5, kHeads = 6, kKVHeads = 2;
  constexpr float kEps = 1e-5F, kWeightOffset = 1.0F;
  struct Case {
    DType dtype;
    int head_size, rotary_dim, block_size;
  };
  for (const Case& c : {Case{DType::kBFloat16, 128, 128, 16}, Case{DType::kFloat16, 64, 32, 32},
                        Case{DType::kBFloat16, 80, 32, 16}, Case{DType::kFloat32, 48, 20, 16},
                        Case{DType::kBFloat16, 96, 20, 16}, Case{DType::kFloat32, 256, 256, 64},
                        Case{DType::kFloat16, 256, 256, 16}, Case{DType::kBFloat16, 96, 96, 16},
                        Case{DType::kBFloat16, 16, 16, 16}}) {
    for (const int variant : {0, 1, 2, 3}) {
      const bool wide_slots = variant % 2 == 1, has_norms = variant >= 2, interleaved = wide_slots;
      SCOPED_TRACE(testing::Message()
                   << dtype_name(c.dtype) << " " << c.head_size << " " << c.rotary_dim << " " << variant);
      Tensor q_weight(c.dtype, 1, c.head_size), k_weight(c.dtype, 1, c.head_size);
      q_weight.randomize(3);
      k_weight.randomize(4);
      const HeadNorms norms = {TensorView(q_weight.view().data, c.dtype, c.head_size),
                               TensorView(k_weight.view().data, c.dtype, c.head_size), kEps, kWeightOffset};
      const int columns = (kHeads + 2 * kKVHeads) * c.head_size;
      Tensor qkv(c.dtype, kTokens, columns, 16), angles(DType::kFloat32, 40, c.rotary_dim);
      qkv.randomize(1);
      angles.randomize(2);
      Array<int32_t> positions = {0, 39, 3, 17, 4}, slots = {17, -1, 5, 64, 31};
      Array<int64_t> slots64(slots.begin(), slots.end());
      const TensorView slot_view =
          wide_slots ? TensorView(slots64.data(), DType::kInt64, kTokens) : int_view(slots);
      const auto part = [&](const Tensor& x, int first, int count) {
        return x.view().columns(first * c.head_size, count * c.head_size).heads(count, c.head_size);
      };
      const size_t page = kernels().kv_page_bytes(c.block_size, kKVHeads, c.head_size, c.dtype);
      const auto view = [&](const Memory& memory) {
        return KVCacheView{.data = memory.data(),
                           .page_stride_bytes = static_cast<int64_t>(page) + 64,
                           .num_blocks = 5,
                           .block_size = c.block_size,
                           .num_kv_heads = kKVHeads,
                           .head_size = c.head_size,
                           .dtype = c.dtype};
      };
      const Memory fused_cache(5 * (page + 64)), cache(5 * (page + 64));
      std::vector<std::string> before, fused;
      for (int64_t t = 0; t < kTokens; ++t) before.push_back(qkv.row_bytes(t));
      kernels().rotary_embedding_and_write_kv(context(), part(qkv, 0, kHeads), part(qkv, kHeads, kKVHeads),
                                              part(qkv, kHeads + kKVHeads, kKVHeads),
                                              has_norms ? &norms : nullptr, int_view(positions), angles,
                                              interleaved, view(fused_cache), slot_view);
      for (int64_t t = 0; t < kTokens; ++t) fused.push_back(qkv.row_bytes(t));
      const size_t query_bytes = static_cast<size_t>(kHeads * c.head_size) * dtype_bytes(c.dtype);
      qkv.randomize(1);
      if (has_norms) {
        const TensorView q = part(qkv, 0, kHeads), k = part(qkv, kHeads, kKVHeads);
        kernels().rms_norm(context(), q, q, norms.q_weight, kEps, kWeightOffset);
        kernels().rms_norm(context(), k, k, norms.k_weight, kEps, kWeightOffset);
      }
      kernels().rotary_embedding(context(), part(qkv, 0, kHeads), part(qkv, kHeads, kKVHeads),
                                 int_view(positions), angles, interleaved);
      kernels().write_kv_cache(context(), view(cache), part(qkv, kHeads, kKVHeads),
                               part(qkv, kHeads + kKVHeads, kKVHeads), slot_view);
      sync();
      for (size_t t = 0; t < kTokens; ++t) {
        const std::string two = qkv.row_bytes(static_cast<int64_t>(t));
        EXPECT_EQ(fused[t].substr(0, query_bytes), two.substr(0, query_bytes)) << "query " << t;
        if (!has_norms) {
          EXPECT_EQ(fused[t].substr(query_bytes), before[t].substr(query_bytes))
              << "key or value changed, " << t;
        }
        EXPECT_NE(fused[t].substr(0, query_bytes), before[t].substr(0, query_bytes)) << "not rotated, " << t;
      }
      EXPECT_EQ(std::memcmp(fused_cache.data(), cache.data(), cache.bytes()), 0);
      size_t written = 0;
      for (size_t i = 0; i < cache.bytes(); ++i) written += cache.data()[i] != std::byte{0xFF} ? 1U : 0U;
      const size_t four_tokens = 4U * 2U * static_cast<size_t>(kKVHeads * c.head_size) * dtype_bytes(c.dtype);
      EXPECT_LE(written, four_tokens);
      EXPECT_GE(written, four_tokens * 9 / 10);  // some bytes of values are 0xFF
    }
  }
}

QUIRE_FOR_CUDA_TABLES(CudaAttentionTest);

}  // namespace
}  // namespace quire
