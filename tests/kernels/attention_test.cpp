#include <set>

#include "kernel_test.h"

namespace quire {
namespace {

struct Shape {
  DType dtype = DType::kFloat32;
  int heads = 4;
  int kv_heads = 2;
  int head_size = 64;
  int block_size = 16;
};

struct Options {
  float soft_cap = 0;
  int window = 0;
  bool alibi = false;
  bool sinks = false;
};

// Requests with random keys and values, cached in pages handed out in no particular order. Whatever lies
// in slots that no token was written to is NaN.
class AttentionTest : public KernelTest {
 protected:
  // One tensor of [tokens, heads * head_size] per request and role.
  struct Request {
    Tensor query, keys, values;
    std::vector<int32_t> pages;
  };

  void make_cache(const Shape& shape, const std::vector<int>& lengths) {
    shape_ = shape;
    requests_.clear();
    int num_pages = 1;
    for (const int length : lengths) {
      const uint32_t seed = static_cast<uint32_t>(requests_.size()) * 3;
      const int width = shape.kv_heads * shape.head_size;
      requests_.push_back({Tensor(shape.dtype, length, shape.heads * shape.head_size, 8),
                           Tensor(shape.dtype, length, width, 16),
                           Tensor(shape.dtype, length, width),
                           {}});
      requests_.back().query.randomize(seed);
      requests_.back().keys.randomize(seed + 1);
      requests_.back().values.randomize(seed + 2);
      num_pages += (length + shape.block_size - 1) / shape.block_size;
    }
    const size_t page_bytes =
        kernels().kv_page_bytes(shape.block_size, shape.kv_heads, shape.head_size, shape.dtype);
    const size_t stride = (page_bytes + 63) / 64 * 64 + 64;
    memory_ = std::make_unique<Memory>(stride * static_cast<size_t>(num_pages));
    cache_ = {.data = memory_->data(),
              .page_stride_bytes = static_cast<int64_t>(stride),
              .num_blocks = num_pages,
              .block_size = shape.block_size,
              .num_kv_heads = shape.kv_heads,
              .head_size = shape.head_size,
              .dtype = shape.dtype};
    int next = num_pages - 1;
    for (Request& request : requests_) {
      const int length = static_cast<int>(request.keys.view().shape[0]);
      for (int t = 0; t < length; t += shape.block_size) request.pages.push_back(next--);
    }
  }

  // Stores tokens [begin, end) of a request.
  void write(const LaunchContext& ctx, const Request& request, int begin, int end) {
    std::vector<int32_t> slots;
    for (int t = begin; t < end; ++t)
      slots.push_back(request.pages[static_cast<size_t>(t / shape_.block_size)] * shape_.block_size +
                      t % shape_.block_size);
    const auto part = [&](const Tensor& x) {
      return x.view().rows(begin, end - begin).heads(shape_.kv_heads, shape_.head_size);
    };
    kernels().write_kv_cache(ctx, cache_, part(request.keys), part(request.values), int_view(slots));
  }

  struct Chunk {
    int request, begin, end;
  };

  // One batch of the given chunks, each attending to what precedes it. One row per token.
  Tensor attend(const LaunchContext& ctx, const std::vector<Chunk>& chunks, const Options& options) {
    const int width = shape_.heads * shape_.head_size;
    std::vector<int32_t> starts = {0}, lengths;
    size_t max_pages = 0;
    int max_query = 0, max_length = 0;
    for (const Chunk& c : chunks) {
      starts.push_back(starts.back() + c.end - c.begin);
      lengths.push_back(c.end);
      max_pages = std::max(max_pages, requests_[static_cast<size_t>(c.request)].pages.size());
      max_query = std::max(max_query, c.end - c.begin);
      max_length = std::max(max_length, c.end);
    }
    const auto rows = static_cast<int64_t>(chunks.size());
    std::vector<int32_t> table(chunks.size() * (max_pages + 3), -1);
    Tensor query(shape_.dtype, starts.back(), width, 24);
    for (size_t i = 0; i < chunks.size(); ++i) {
      const Request& request = requests_[static_cast<size_t>(chunks[i].request)];
      const size_t used = static_cast<size_t>((chunks[i].end + shape_.block_size - 1) / shape_.block_size);
      std::copy_n(request.pages.begin(), used, table.begin() + static_cast<long>(i * (max_pages + 3)));
      for (int t = chunks[i].begin; t < chunks[i].end; ++t)
        std::memcpy(query.view().at(starts[i] + t - chunks[i].begin), request.query.view().at(t),
                    static_cast<size_t>(width) * dtype_bytes(shape_.dtype));
    }
    Tensor out(shape_.dtype, starts.back(), width, 8);
    PagedAttentionArgs args;
    args.out = out.view().heads(shape_.heads, shape_.head_size);
    args.query = query.view().heads(shape_.heads, shape_.head_size);
    args.kv_cache = cache_;
    args.block_table = TensorView(table.data(), DType::kInt32, rows, static_cast<int64_t>(max_pages + 3));
    args.query_start_loc = int_view(starts);
    args.seq_lens = int_view(lengths);
    args.max_query_len = max_query;
    args.max_seq_len = max_length;
    args.scale = scale();
    args.soft_cap = options.soft_cap;
    args.sliding_window = options.window;
    args.alibi_slopes = options.alibi ? slopes_.data() : nullptr;
    args.sinks = options.sinks ? sinks_.data() : nullptr;
    kernels().paged_attention(ctx, args);
    return out;
  }

  float scale() const { return 1.0F / std::sqrt(static_cast<float>(shape_.head_size)); }

  std::vector<double> expected(const Chunk& chunk, const Options& options) const {
    const Request& request = requests_[static_cast<size_t>(chunk.request)];
    const auto head_size = static_cast<size_t>(shape_.head_size);
    std::vector<double> out;
    std::vector<reference::Matrix> keys, values;
    for (int kv_head = 0; kv_head < shape_.kv_heads; ++kv_head) {
      keys.push_back(head_of(request.keys, kv_head));
      values.push_back(head_of(request.values, kv_head));
    }
    for (int t = chunk.begin; t < chunk.end; ++t) {
      for (int h = 0; h < shape_.heads; ++h) {
        std::vector<double> query(head_size);
        for (size_t d = 0; d < head_size; ++d)
          query[d] = static_cast<double>(request.query.get(t, h * shape_.head_size + static_cast<int>(d)));
        const auto kv = static_cast<size_t>(h / (shape_.heads / shape_.kv_heads));
        const reference::AttentionOptions all = {
            .scale = static_cast<double>(scale()),
            .soft_cap = static_cast<double>(options.soft_cap),
            .window = options.window,
            .alibi_slope = options.alibi ? static_cast<double>(slopes_[static_cast<size_t>(h)]) : 0,
            .sink = options.sinks ? &sinks_[static_cast<size_t>(h)] : nullptr};
        const auto row = reference::attend(query.data(), keys[kv], values[kv], head_size, t, all);
        out.insert(out.end(), row.begin(), row.end());
      }
    }
    return out;
  }

  void expect_matches(const std::vector<Chunk>& chunks, const Options& options = {}) {
    std::vector<double> all;
    for (const Chunk& c : chunks) {
      const std::vector<double> rows = expected(c, options);
      all.insert(all.end(), rows.begin(), rows.end());
    }
    const bool exact = shape_.dtype == DType::kFloat32;
    expect_close(attend(context(), chunks, options), all, exact ? 3e-6 : 1.5e-2, exact ? 2e-6 : 1e-2);
  }

  void write_all(const LaunchContext& ctx) {
    for (const Request& request : requests_)
      write(ctx, request, 0, static_cast<int>(request.keys.view().shape[0]));
  }

  const KVCacheView& cache() const { return cache_; }
  const Request& request(int i) const { return requests_[static_cast<size_t>(i)]; }
  void give_back_page(int request, int page) {
    requests_[static_cast<size_t>(request)].pages[static_cast<size_t>(page)] = 0;
  }
  void set_pages(int request, const std::vector<int32_t>& pages) {
    requests_[static_cast<size_t>(request)].pages = pages;
  }
  void use_cache(const KVCacheView& cache) { cache_ = cache; }

 private:
  reference::Matrix head_of(const Tensor& x, int kv_head) const {
    reference::Matrix head;
    for (int64_t t = 0; t < x.view().shape[0]; ++t)
      for (int d = 0; d < shape_.head_size; ++d)
        head.push_back(static_cast<double>(x.get(t, kv_head * shape_.head_size + d)));
    return head;
  }

  Shape shape_;
  std::vector<Request> requests_;
  std::unique_ptr<Memory> memory_;
  KVCacheView cache_;
  const std::vector<float> slopes_ = {0.5F, 0.25F, 0.125F, 0.0625F, 0.03125F, 0.01F, 0.3F, 0.2F};
  const std::vector<float> sinks_ = {0.5F, -1.0F, 2.0F, 0.0F, 3.0F, -2.0F, 1.0F, 0.1F};
};

TEST_P(AttentionTest, MatchesTheReferenceForEveryShape) {
  for (const DType dtype : kFloatTypes) {
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
  for (const DType dtype : kFloatTypes) {
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
  for (const DType dtype : kFloatTypes) {
    make_cache({dtype, 4, 2, 32, 32}, {256, 257, 530});
    write_all(context());
    expect_matches({{0, 255, 256}, {1, 250, 257}, {2, 0, 3}, {2, 500, 530}});
  }
}

TEST_P(AttentionTest, SoftCapWindowAlibiAndSinks) {
  for (const DType dtype : kFloatTypes) {
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
  for (const DType dtype : kFloatTypes) {
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
  for (const DType dtype : kFloatTypes) {
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
  for (const DType dtype : kFloatTypes) {
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
  for (const DType dtype : kFloatTypes) {
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
  std::vector<int32_t> slots = {-1, -1};
  const TensorView rows = request(0).keys.view().heads(1, 16);
  KVCacheView nowhere = cache();
  nowhere.data = nullptr;  // a write would crash
  kernels().write_kv_cache(context(), nowhere, rows, rows, int_view(slots));
}

// Prefill, chunked prefill and decode; alone, together, and on any number of threads.
TEST_P(AttentionTest, ARowDoesNotDependOnItsBatchBitwise) {
  ThreadPool pool(3);
  for (const DType dtype : kFloatTypes) {
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
  for (const DType dtype : kFloatTypes) {
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
  AttentionFeatures features = {.dtype = DType::kBFloat16, .head_size = 128, .block_size = 32};
  EXPECT_EQ(kernels().attention_refusal(features), nullptr);
  features.head_size = 72;
  EXPECT_NE(kernels().attention_refusal(features), nullptr);
  features = {.dtype = DType::kBFloat16, .head_size = 128, .block_size = 48};
  EXPECT_NE(kernels().attention_refusal(features), nullptr);
  features = {.dtype = DType::kFloat16, .head_size = 128, .block_size = 16};
  EXPECT_NE(kernels().attention_refusal(features), nullptr);
}

QUIRE_FOR_EVERY_TABLE(AttentionTest);

}  // namespace
}  // namespace quire
