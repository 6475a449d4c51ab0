// Requests in a paged cache, and batches of their tokens against the reference.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "kernel_test.h"

namespace quire {

struct AttentionShape {
  DType dtype = DType::kFloat32;
  int heads = 4;
  int kv_heads = 2;
  int head_size = 64;
  int block_size = 16;
};

struct AttentionTestOptions {
  float soft_cap = 0;
  int window = 0;
  bool alibi = false;
  bool sinks = false;
  int common = 0;  // keys in front that decode rows are said to share
};

// Requests with random keys and values, cached in pages handed out in no particular order. Whatever lies
// in slots that no token was written to is NaN.
class AttentionTest : public KernelTest {
 protected:
  using Shape = AttentionShape;
  using Options = AttentionTestOptions;

  // One tensor of [tokens, heads * head_size] per request and role.
  struct Request {
    Tensor query, keys, values;
    std::vector<int32_t> pages;
  };

  void make_cache(const AttentionShape& shape, const std::vector<int>& lengths) {
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
    if (is_cuda())
      set_workspace(
          kernels().attention_workspace_bytes(4096, 8192, shape.heads, shape.kv_heads, shape.head_size));
    int next = num_pages - 1;
    for (Request& request : requests_) {
      const int length = static_cast<int>(request.keys.view().shape[0]);
      for (int t = 0; t < length; t += shape.block_size) request.pages.push_back(next--);
    }
  }

  // Stores tokens [begin, end) of a request.
  void write(const LaunchContext& ctx, const Request& request, int begin, int end) {
    Array<int32_t> slots;
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
    int length() const { return end - begin; }
  };

  // The inputs of one batch, at addresses that stay. The first chunks of one token are its decode rows.
  struct Batch {
    Batch(DType dtype, int64_t tokens, int64_t width)
        : query(dtype, tokens, width, 24), out(dtype, tokens, width, 8) {}
    Tensor query, out;  // one row per token
    Array<int32_t> starts, lengths, states, table, common;
    size_t table_stride = 0;
    std::unique_ptr<ScratchMemory> plan;
    AttentionMetadata metadata;
    AttentionLayer layer;
  };

  // `padding` rows without tokens follow the chunks', and as many tokens that no row owns.
  std::unique_ptr<Batch> make_batch(const std::vector<Chunk>& chunks, const Options& options,
                                    int padding = 0) {
    int num_tokens = padding;
    size_t max_pages = 0;
    for (const Chunk& c : chunks) {
      num_tokens += c.end - c.begin;
      max_pages = std::max(max_pages, requests_[static_cast<size_t>(c.request)].pages.size());
    }
    auto batch = std::make_unique<Batch>(shape_.dtype, num_tokens, shape_.heads * shape_.head_size);
    const size_t rows = chunks.size() + static_cast<size_t>(padding);
    batch->table_stride = max_pages + 3;
    batch->starts.resize(rows + 1);
    batch->lengths.resize(rows);
    // The table's rows are in another order than the batch's, and there is one that nobody has.
    batch->table.resize((rows + 1) * batch->table_stride);
    for (size_t r = 0; r < rows; ++r) batch->states.push_back(static_cast<int32_t>(rows - r));
    AttentionMetadata& metadata = batch->metadata;
    metadata.block_table = TensorView(batch->table.data(), DType::kInt32, static_cast<int64_t>(rows) + 1,
                                      static_cast<int64_t>(batch->table_stride));
    metadata.state_indices = int_view(batch->states);
    metadata.query_start_loc = int_view(batch->starts);
    metadata.seq_lens = int_view(batch->lengths);
    metadata.slot_mapping = TensorView(nullptr, DType::kInt64, num_tokens);  // nothing is written
    batch->common = {options.common};
    if (options.common > 0) metadata.common_prefix_len = int_view(batch->common);
    while (metadata.num_decode_rows < static_cast<int>(chunks.size()) &&
           chunks[static_cast<size_t>(metadata.num_decode_rows)].length() == 1)
      ++metadata.num_decode_rows;
    if (metadata.num_decode_rows == static_cast<int>(chunks.size())) metadata.num_decode_rows += padding;
    batch->layer = {.dtype = shape_.dtype,
                    .num_heads = shape_.heads,
                    .num_kv_heads = shape_.kv_heads,
                    .head_size = shape_.head_size,
                    .block_size = shape_.block_size,
                    .scale = scale(),
                    .soft_cap = options.soft_cap,
                    .sliding_window = options.window,
                    .alibi_slopes = options.alibi ? slopes_.data() : nullptr,
                    .sinks = options.sinks ? sinks_.data() : nullptr};
    EXPECT_STREQ(kernels().select_attention(batch->layer), nullptr);
    fill_batch(*batch, chunks);
    if (kernels().attention_plan_bytes != nullptr) {
      batch->plan = std::make_unique<ScratchMemory>(
          kernels().attention_plan_bytes(static_cast<int32_t>(rows), num_tokens));
      metadata.plan = batch->plan->data();
    }
    return batch;
  }

  // Other chunks, no more of them or of their tokens, behind the same addresses.
  void fill_batch(Batch& batch, const std::vector<Chunk>& chunks) {
    std::fill(batch.table.begin(), batch.table.end(), -1);
    const size_t width = static_cast<size_t>(shape_.heads * shape_.head_size) * dtype_bytes(shape_.dtype);
    int token = 0;
    for (size_t i = 0; i < batch.lengths.size(); ++i) {
      batch.starts[i] = token;
      batch.lengths[i] = 0;
      if (i >= chunks.size()) continue;
      const Chunk& c = chunks[i];
      const Request& request = requests_[static_cast<size_t>(c.request)];
      batch.lengths[i] = c.end;
      batch.metadata.max_query_len = std::max(batch.metadata.max_query_len, c.length());
      batch.metadata.max_seq_len = std::max(batch.metadata.max_seq_len, c.end);
      const size_t used = static_cast<size_t>((c.end + shape_.block_size - 1) / shape_.block_size);
      std::copy_n(
          request.pages.begin(), used,
          batch.table.begin() + static_cast<long>(static_cast<size_t>(batch.states[i]) * batch.table_stride));
      for (int t = c.begin; t < c.end; ++t)
        std::memcpy(batch.query.view().at(token++), request.query.view().at(t), width);
    }
    batch.starts.back() = token;
  }

  void plan(const LaunchContext& ctx, const Batch& batch) {
    if (batch.plan != nullptr) kernels().plan_attention(ctx, batch.metadata, batch.layer);
  }
  void attend(const LaunchContext& ctx, const Batch& batch) {
    kernels().paged_attention(ctx, batch.out.view().heads(shape_.heads, shape_.head_size),
                              batch.query.view().heads(shape_.heads, shape_.head_size), cache_,
                              batch.metadata, batch.layer);
  }

  // One batch of the given chunks, each attending to what precedes it. One row per token.
  Tensor attend(const LaunchContext& ctx, const std::vector<Chunk>& chunks, const Options& options) {
    auto batch = make_batch(chunks, options);
    plan(ctx, *batch);
    attend(ctx, *batch);
    sync();
    return std::move(batch->out);
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

  std::vector<double> expected(const std::vector<Chunk>& chunks, const Options& options) const {
    std::vector<double> all;
    for (const Chunk& c : chunks) {
      const std::vector<double> rows = expected(c, options);
      all.insert(all.end(), rows.begin(), rows.end());
    }
    return all;
  }
  void expect_near(const Tensor& actual, const std::vector<double>& expected) const {
    switch (shape_.dtype) {
      case DType::kFloat32: return expect_close(actual, expected, is_cuda() ? 1e-5 : 3e-6, 2e-6);
      case DType::kFloat16: return expect_close(actual, expected, 2.5e-3, 2e-3);
      default: return expect_close(actual, expected, 1.5e-2, 1e-2);
    }
  }

  // What a device's table chooses among, forced one by one; those that cannot do it leave the choice as it
  // was.
  std::vector<const char*> forced_kernels() const {
    return is_cuda() ? std::vector<const char*>{"wgmma", "mma", "simt"} : std::vector<const char*>{"auto"};
  }
  void expect_matches(const std::vector<Chunk>& chunks, const Options& options = {}) {
    const std::vector<double> all = expected(chunks, options);
    for (const char* kernel : forced_kernels()) {
      const ForcedKernel forced(kernel);
      for (const char* blocks : blocks_of(kernel)) {
        SCOPED_TRACE(testing::Message() << kernel << ", " << blocks << " blocks");
        const ForcedBlocks forced_blocks(blocks);
        expect_near(attend(context(), chunks, options), all);
      }
    }
  }
  struct ForcedKernel {
    explicit ForcedKernel(const char* name) { setenv("QUIRE_ATTENTION_KERNEL", name, 1); }
    ~ForcedKernel() { unsetenv("QUIRE_ATTENTION_KERNEL"); }
    ForcedKernel(const ForcedKernel&) = delete;
    ForcedKernel& operator=(const ForcedKernel&) = delete;
  };

  // That share an item of a prompt.
  static std::vector<const char*> blocks_of(const std::string& kernel) {
    return kernel == "wgmma" ? std::vector<const char*>{"1", "2"} : std::vector<const char*>{"1"};
  }
  struct ForcedBlocks {
    explicit ForcedBlocks(const char* count) { setenv("QUIRE_PREFILL_BLOCKS", count, 1); }
    ~ForcedBlocks() { unsetenv("QUIRE_PREFILL_BLOCKS"); }
    ForcedBlocks(const ForcedBlocks&) = delete;
    ForcedBlocks& operator=(const ForcedBlocks&) = delete;
  };

  void write_all(const LaunchContext& ctx) {
    for (const Request& request : requests_)
      write(ctx, request, 0, static_cast<int>(request.keys.view().shape[0]));
  }

  const KVCacheView& cache() const { return cache_; }
  const Request& request(int i) const { return requests_[static_cast<size_t>(i)]; }
  // Before they are written.
  void scale_keys(int request, int begin, int end, float factor) {
    Tensor& keys = requests_[static_cast<size_t>(request)].keys;
    for (int t = begin; t < end; ++t)
      for (int64_t c = 0; c < keys.view().shape[1]; ++c) keys.set(t, c, factor * keys.get(t, c));
  }
  void give_back_page(int request, int page) {
    requests_[static_cast<size_t>(request)].pages[static_cast<size_t>(page)] = 0;
  }
  // All requests begin with the first one's `tokens` tokens, and have the same pages for them.
  void share(int tokens) {
    const Request& first = requests_.front();
    for (Request& request : requests_) {
      for (int t = 0; t < tokens; ++t) {
        std::memcpy(request.keys.view().at(t), first.keys.view().at(t), bytes_of_token());
        std::memcpy(request.values.view().at(t), first.values.view().at(t), bytes_of_token());
      }
      std::copy_n(first.pages.begin(), tokens / shape_.block_size, request.pages.begin());
    }
  }
  void set_pages(int request, const std::vector<int32_t>& pages) {
    requests_[static_cast<size_t>(request)].pages = pages;
  }
  void use_cache(const KVCacheView& cache) { cache_ = cache; }

 private:
  size_t bytes_of_token() const {
    return static_cast<size_t>(shape_.kv_heads * shape_.head_size) * dtype_bytes(shape_.dtype);
  }
  reference::Matrix head_of(const Tensor& x, int kv_head) const {
    reference::Matrix head;
    for (int64_t t = 0; t < x.view().shape[0]; ++t)
      for (int d = 0; d < shape_.head_size; ++d)
        head.push_back(static_cast<double>(x.get(t, kv_head * shape_.head_size + d)));
    return head;
  }

  AttentionShape shape_;
  std::vector<Request> requests_;
  std::unique_ptr<Memory> memory_;
  KVCacheView cache_;
  const Array<float> slopes_ = {0.5F, 0.25F, 0.125F, 0.0625F, 0.03125F, 0.01F, 0.3F, 0.2F};
  const Array<float> sinks_ = {0.5F, -1.0F, 2.0F, 0.0F, 3.0F, -2.0F, 1.0F, 0.1F};
};

}  // namespace quire
