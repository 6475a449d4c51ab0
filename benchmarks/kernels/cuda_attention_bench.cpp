// Paged attention alone on a CUDA device, bf16, pages of 16.
//
//   quire_cuda_attention_bench [decode | prefill | chunks | heads | shared]
//
// decode, prefill: 32 query heads, 8 KV heads, head size 128, beside FA3's figure and the target. chunks: the
// same heads, prompts of other lengths and the last tokens of long ones. heads:
// other head sizes and numbers of KV heads beside their floors, which are what an H200 reads, 4.38 TB/s, and
// what its large products reach, 669 TFLOP/s.
//
// A row is a graph of launches, timed with events; the median of its replays counts. Pages lie in no order.
// Where one batch's keys and values would stay in L2, the launches take turns at several. The plan, one small
// kernel a step, is timed apart. With QUIRE_BENCH_SECONDS set each row's line has one in front, of what it is
// when it goes on for so long: its time, power and clock.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string_view>
#include <vector>

#include "power.h"
#include "quire/kernels/backend_registry.h"
#include "quire/kernels/device_runtime.h"

namespace quire {
namespace {

constexpr int kBlockSize = 16;
constexpr DType kDType = DType::kBFloat16;

struct Heads {
  int queries = 32, kv = 8, size = 128;
  size_t token_bytes() const { return 4 * static_cast<size_t>(kv) * static_cast<size_t>(size); }
};
constexpr size_t kMoreThanL2 = 512UL << 20;

const DeviceRuntime* runtime;
const KernelTable* kernels;
void* stream;
LaunchError launch_error;

void check(int code, const char* what) {
  if (code == 0) return;
  std::fprintf(stderr, "%s: %s\n", what, runtime->error_text(code));
  std::exit(1);
}
void check_launches() {
  if (!launch_error.failed) return;
  std::fprintf(stderr, "launch: %s\n", launch_error.text);
  std::exit(1);
}

class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes) {
    check(runtime->allocate(&data_, std::max<size_t>(bytes, 1)), "allocate");
  }
  ~DeviceMemory() { runtime->release(data_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  void* data() const { return data_; }
  void copy_from(const std::vector<int32_t>& values) const {
    check(runtime->copy(data_, values.data(), values.size() * sizeof(int32_t), stream), "copy");
    check(runtime->synchronize_stream(stream), "copy");
  }

 private:
  void* data_ = nullptr;
};

// The median, in microseconds, of one `launch(i)` out of `count` in a graph; then, where asked for, what it
// is when it goes on.
template <typename Launch>
double median_us(int count, Launch launch, bool goes_on) {
  launch(0);  // loads the kernels
  check(runtime->synchronize_stream(stream), "the first launch");
  check_launches();
  check(runtime->begin_capture(stream), "begin_capture");
  for (int i = 0; i < count; ++i) launch(i);
  void* graph = nullptr;
  check(runtime->end_capture(stream, &graph), "end_capture");
  check_launches();
  void *begin = nullptr, *end = nullptr;
  check(runtime->create_event(&begin, true), "create_event");
  check(runtime->create_event(&end, true), "create_event");
  constexpr int kWarmUp = 5, kRuns = 25;
  std::vector<double> times;
  for (int run = 0; run < kWarmUp + kRuns; ++run) {
    check(runtime->record_event(begin, stream), "record_event");
    check(runtime->launch_graph(graph, stream), "launch_graph");
    check(runtime->record_event(end, stream), "record_event");
    check(runtime->synchronize_event(end), "the graph");
    float ms = 0;
    check(runtime->elapsed_ms(&ms, begin, end), "elapsed_ms");
    if (run >= kWarmUp) times.push_back(1e3 * static_cast<double>(ms) / count);
  }
  if (goes_on) {
    print_sustained(count, [&] {
      check(runtime->launch_graph(graph, stream), "launch_graph");
      check(runtime->synchronize_stream(stream), "the graph");
    });
  }
  runtime->destroy_event(begin);
  runtime->destroy_event(end);
  runtime->destroy_graph(graph);
  std::nth_element(times.begin(), times.begin() + kRuns / 2, times.end());
  return times[kRuns / 2];
}

struct Result {
  double attention_us, plan_us;
};

// How many tokens in front all rows share, and whether the kernels are told.
struct Shared {
  int tokens = 0;
  bool is_told = false;
};

// `batch` rows of `context` tokens, of which the last `query` are this step's.
Result measure(const Heads& heads, int batch, int context, int query, Shared shared = {}) {
  const int pages_per_row = (context + kBlockSize - 1) / kBlockSize;
  const size_t tokens = static_cast<size_t>(shared.tokens) +
                        static_cast<size_t>(batch) * static_cast<size_t>(context - shared.tokens);
  const size_t batch_bytes = tokens * heads.token_bytes();
  const int sets = static_cast<int>(std::max<size_t>(1, std::min<size_t>(64, kMoreThanL2 / batch_bytes)));
  const int num_pages = sets * batch * pages_per_row;
  const size_t page_bytes = kernels->kv_page_bytes(kBlockSize, heads.kv, heads.size, kDType);
  const int64_t num_tokens = static_cast<int64_t>(batch) * query;

  const DeviceMemory pages(static_cast<size_t>(num_pages) * page_bytes);
  const int64_t columns = heads.queries * heads.size, all_columns = columns + 2 * heads.kv * heads.size;
  const auto query_bytes = static_cast<size_t>(num_tokens * all_columns * 2);
  const DeviceMemory qkv(query_bytes), out(static_cast<size_t>(num_tokens * columns * 2));
  const DeviceMemory table(static_cast<size_t>(num_pages) * sizeof(int32_t));
  const DeviceMemory starts(static_cast<size_t>(batch + 1) * 4), lengths(static_cast<size_t>(batch) * 4),
      states(static_cast<size_t>(batch) * 4);
  const auto tokens32 = static_cast<int32_t>(num_tokens);
  const DeviceMemory plan(kernels->attention_plan_bytes(batch, tokens32));
  const size_t workspace_bytes =
      kernels->attention_workspace_bytes(tokens32, context, heads.queries, heads.kv, heads.size);
  const DeviceMemory workspace(workspace_bytes);
  const LaunchContext ctx = {.stream = stream,
                             .error = &launch_error,
                             .workspace = workspace.data(),
                             .workspace_bytes = workspace_bytes};

  std::vector<int32_t> ids(static_cast<size_t>(num_pages));
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), std::mt19937(1));
  const int shared_pages = shared.tokens / kBlockSize;
  for (int row = 0; row < sets * batch; ++row)
    std::copy_n(ids.begin() + row / batch * batch * pages_per_row, shared_pages,
                ids.begin() + row * pages_per_row);
  table.copy_from(ids);
  std::vector<int32_t> begins;
  for (int r = 0; r <= batch; ++r) begins.push_back(r * query);
  starts.copy_from(begins);
  std::vector<int32_t> in_order(static_cast<size_t>(batch));
  std::iota(in_order.begin(), in_order.end(), 0);
  states.copy_from(in_order);
  lengths.copy_from(std::vector<int32_t>(static_cast<size_t>(batch), context));
  kernels->fill_random(
      ctx, TensorView(pages.data(), kDType, static_cast<int64_t>(num_pages * (page_bytes / 2))), 1.7F, 1);
  kernels->fill_random(ctx, TensorView(qkv.data(), kDType, static_cast<int64_t>(query_bytes / 2)), 1.7F, 2);

  const TensorView out_view(out.data(), kDType, num_tokens, heads.queries, heads.size);
  const TensorView query_view = TensorView(qkv.data(), kDType, num_tokens, all_columns)
                                    .columns(0, columns)
                                    .heads(heads.queries, heads.size);
  const KVCacheView kv_cache = {.data = pages.data(),
                                .page_stride_bytes = static_cast<int64_t>(page_bytes),
                                .num_blocks = num_pages,
                                .block_size = kBlockSize,
                                .num_kv_heads = heads.kv,
                                .head_size = heads.size,
                                .dtype = kDType};
  AttentionMetadata metadata;
  metadata.state_indices = TensorView(states.data(), DType::kInt32, batch);
  metadata.query_start_loc = TensorView(starts.data(), DType::kInt32, batch + 1);
  metadata.seq_lens = TensorView(lengths.data(), DType::kInt32, batch);
  metadata.slot_mapping = TensorView(nullptr, DType::kInt64, num_tokens);  // nothing is written
  metadata.num_decode_rows = query == 1 ? batch : 0;
  metadata.max_query_len = query;
  metadata.max_seq_len = context;
  metadata.plan = plan.data();
  const DeviceMemory shared_tokens(sizeof(int32_t));
  shared_tokens.copy_from({shared.tokens});
  if (shared.is_told) metadata.common_prefix_len = TensorView(shared_tokens.data(), DType::kInt32, 1);
  AttentionLayer layer = {.dtype = kDType,
                          .num_heads = heads.queries,
                          .num_kv_heads = heads.kv,
                          .head_size = heads.size,
                          .block_size = kBlockSize,
                          .scale = 1.0F / std::sqrt(static_cast<float>(heads.size))};
  if (const char* reason = kernels->select_attention(layer)) {
    std::fprintf(stderr, "%s\n", reason);
    std::exit(1);
  }
  Result result{};
  result.plan_us = median_us(20, [&](int) { kernels->plan_attention(ctx, metadata, layer); }, false);
  // Several in a row, as a model's layers are: long prompts are held back by power, which two do not show.
  const int launches =
      std::clamp(static_cast<int>((2UL << 30) / batch_bytes / static_cast<size_t>(query)), 8, 64);
  const auto attend = [&](int i) {
    AttentionMetadata one = metadata;
    one.block_table = TensorView(static_cast<int32_t*>(table.data()) + i % sets * batch * pages_per_row,
                                 DType::kInt32, batch, pages_per_row);
    kernels->paged_attention(ctx, out_view, query_view, kv_cache, one, layer);
  };
  result.attention_us = median_us(launches, attend, true);
  return result;
}

void decode() {
  struct Row {
    int batch, context;
    double fa3_us, target_us;
  };
  constexpr Row kRows[] = {{1, 1024, 11.8, 8.3},  {1, 8192, 18.3, 16},  {1, 65536, 73, 68},
                           {8, 4096, 41.1, 38},   {64, 1024, 75.9, 70}, {64, 4096, 248, 246},
                           {256, 1024, 277, 255}, {256, 4096, 971, 955}};
  std::printf("%-14s %9s %7s %8s %8s %9s %9s %8s\n", "decode", "us", "TB/s", "FA3 us", "target", "x of FA3",
              "x target", "plan us");
  for (const Row& row : kRows) {
    const Result r = measure({}, row.batch, row.context, 1);
    const double bytes =
        static_cast<double>(row.batch) * row.context * static_cast<double>(Heads{}.token_bytes());
    std::printf("%4d x %-7d %9.2f %7.2f %8.1f %8.1f %9.3f %9.3f %8.2f\n", row.batch, row.context,
                r.attention_us, bytes / r.attention_us * 1e-6, row.fa3_us, row.target_us,
                r.attention_us / row.fa3_us, r.attention_us / row.target_us, r.plan_us);
  }
}

// Two products of which causality leaves half.
double prompt_flops(const Heads& heads, int length) {
  return 2.0 * length * length * heads.queries * heads.size;
}

void prefill() {
  struct Row {
    int batch, length;
    double fa3_tflops, target_tflops;
  };
  constexpr Row kRows[] = {
      {1, 2048, 412, 420}, {1, 8192, 633, 640}, {4, 8192, 569, 640}, {16, 1024, 408, 430}};
  std::printf("%-14s %9s %7s %8s %8s %9s %9s %8s\n", "prefill", "us", "TFLOP/s", "FA3", "target", "of FA3",
              "of target", "plan us");
  for (const Row& row : kRows) {
    const Result r = measure({}, row.batch, row.length, row.length);
    const double tflops = row.batch * prompt_flops({}, row.length) / r.attention_us * 1e-6;
    std::printf("%4d x %-7d %9.1f %7.0f %8.0f %8.0f %9.3f %9.3f %8.2f\n", row.batch, row.length,
                r.attention_us, tflops, row.fa3_tflops, row.target_tflops, tflops / row.fa3_tflops,
                tflops / row.target_tflops, r.plan_us);
  }
}

void chunks() {
  struct Row {
    int batch, query, context;
  };
  constexpr Row kRows[] = {{1, 256, 256},    {1, 512, 512},     {1, 1024, 1024},  {8, 512, 512},
                           {32, 256, 256},   {64, 128, 128},    {256, 32, 32},    {64, 32, 4096},
                           {16, 512, 4096},  {1, 2048, 32768},  {1, 8192, 32768}, {1, 32768, 32768},
                           {1, 512, 131072}, {1, 2048, 131072}, {1, 8192, 131072}};
  std::printf("%-22s %10s %8s\n", "last of context", "us", "TFLOP/s");
  for (const Row& row : kRows) {
    const double us = measure({}, row.batch, row.context, row.query).attention_us;
    const double before = row.context - row.query;
    const double flops = row.batch * (prompt_flops({}, row.query) + 4.0 * row.query * before * 32 * 128);
    std::printf("%4d x %6d of %-6d %10.1f %8.0f\n", row.batch, row.query, row.context, us, flops / us * 1e-6);
  }
}

// Decode reads 1 GiB of keys and values, a prompt has 8,192 tokens.
void head_sizes() {
  constexpr double kBytesPerUs = 4.38e6, kFlopsPerUs = 669e6;
  constexpr int kBatch = 64, kLength = 8192;
  std::printf("%-10s %5s %9s %7s %9s %12s %8s %9s\n", "heads", "size", "decode us", "TB/s", "of floor",
              "prompt us", "TFLOP/s", "of floor");
  for (const int size : {64, 80, 96, 128, 256}) {
    for (const int kv : {32, 16, 8, 4, 2}) {
      const Heads heads{.kv = kv, .size = size};
      const int context =
          static_cast<int>((1UL << 30) / kBatch / heads.token_bytes()) / kBlockSize * kBlockSize;
      const double bytes = static_cast<double>(kBatch * static_cast<size_t>(context) * heads.token_bytes());
      const double flops = prompt_flops(heads, kLength);
      const double decode_us = measure(heads, kBatch, context, 1).attention_us;
      const double prompt_us = measure(heads, 1, kLength, kLength).attention_us;
      std::printf("%4d, %-4d %5d %9.2f %7.2f %9.2f %12.1f %8.0f %9.2f\n", heads.queries, kv, size, decode_us,
                  bytes / decode_us * 1e-6, decode_us / (bytes / kBytesPerUs), prompt_us,
                  flops / prompt_us * 1e-6, prompt_us / (flops / kFlopsPerUs));
    }
  }
}

}  // namespace
void shared_keys() {
  std::printf("%6s %8s %6s %12s %12s %8s\n", "rows", "shared", "own", "each, us", "apart, us", "times");
  for (const int own : {128, 1024}) {
    for (const int tokens : {256, 512, 1024, 4096, 16384}) {
      for (const int rows : {4, 8, 16, 32, 64, 256}) {
        const auto us = [&](bool is_told) {
          return measure(Heads{}, rows, tokens + own, 1, {tokens, is_told}).attention_us;
        };
        const double each = us(false), apart = us(true);
        std::printf("%6d %8d %6d %12.1f %12.1f %8.2f\n", rows, tokens, own, each, apart, each / apart);
      }
    }
  }
}

}  // namespace quire

int main(int argc, char** argv) {
  using namespace quire;
  kernels = cuda_kernel_table(0);
  runtime = kernels != nullptr ? find_device_runtime("cuda") : nullptr;
  if (runtime == nullptr) {
    std::fprintf(stderr, "no CUDA device\n");
    return 1;
  }
  check(runtime->select(0), "select");
  check(runtime->create_stream(&stream), "create_stream");
  const std::string_view what = argc > 1 ? argv[1] : "";
  if (what.empty() || what == "decode") decode();
  if (what.empty() || what == "prefill") prefill();
  if (what.empty() || what == "chunks") chunks();
  if (what.empty() || what == "heads") head_sizes();
  if (what.empty() || what == "shared") shared_keys();
  check(runtime->synchronize(), "synchronize");
  check_launches();
  return 0;
}
