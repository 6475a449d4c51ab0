// The CPU kernels at the shapes of a 0.67 B Llama: hidden 2048, intermediate 5632, 32 query heads and 8
// KV heads of 64, vocabulary 32000.
//
//   quire_kernel_bench [--benchmark_filter=Linear] ; QUIRE_CPU_ISA and QUIRE_BENCH_THREADS choose.
//
// Linear reports flops and the bytes of weights read per second, to be compared with MemoryRead of the
// same run: memory speed changes from one minute to the next on shared machines.
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "device/thread_pool.h"
#include "quire/kernels/backend_registry.h"

namespace quire {
namespace {

// Zero-filled and, as the engine holds its weights, in 2 MiB pages where the kernel grants them.
class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_((bytes + kHuge) / kHuge * kHuge + kHuge) {
    mapping_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping_ == MAP_FAILED) std::abort();
    const auto address = reinterpret_cast<uintptr_t>(mapping_);
    data_ = reinterpret_cast<std::byte*>((address + kHuge - 1) / kHuge * kHuge);
    madvise(data_, bytes_ - kHuge, MADV_HUGEPAGE);
    std::memset(data_, 0, bytes);
  }
  ~Memory() { munmap(mapping_, bytes_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::byte* data() const { return data_; }

 private:
  static constexpr size_t kHuge = size_t{2} << 20;
  size_t bytes_;
  void* mapping_;
  std::byte* data_;
};

ThreadPool& pool() {
  static ThreadPool pool([] {
    const char* threads = std::getenv("QUIRE_BENCH_THREADS");
    return threads != nullptr ? std::atoi(threads) : static_cast<int>(ThreadPool::available_cpus().size());
  }());
  return pool;
}

const KernelTable& kernels() { return *find_kernel_table("cpu"); }

void fill(void* data, DType dtype, int64_t n) {
  std::minstd_rand random(1);
  for (int64_t i = 0; i < n; ++i) {
    const float x = static_cast<float>(random() % 2001) * 1e-3F - 1.0F;
    if (dtype == DType::kFloat32) {
      static_cast<float*>(data)[i] = x;
    } else {
      uint32_t bits;
      std::memcpy(&bits, &x, sizeof bits);
      static_cast<uint16_t*>(data)[i] = static_cast<uint16_t>(bits >> 16);
    }
  }
}

// ---- memory ---------------------------------------------------------------------------------------

using Vector = uint64_t __attribute__((vector_size(64)));

void MemoryRead(benchmark::State& state) {
  constexpr int64_t kBytes = int64_t{512} << 20;
  static const Memory memory(kBytes);
  struct Work {
    const Vector* data;
    uint64_t sums[256 * 8];
  } work{reinterpret_cast<const Vector*>(memory.data()), {}};
  for (auto _ : state) {
    pool().run(
        [](void* arg, int32_t index, int32_t count) {
          auto& w = *static_cast<Work*>(arg);
          const int64_t vectors = kBytes / 64, begin = vectors * index / count,
                        end = vectors * (index + 1) / count;
          Vector sum[4] = {};
          for (int64_t i = begin; i + 4 <= end; i += 4) {
            for (int j = 0; j < 4; ++j) {
              __builtin_prefetch(w.data + i + j + 64);
              sum[j] += w.data[i + j];
            }
          }
          w.sums[index * 8 % 2048] = (sum[0] + sum[1] + sum[2] + sum[3])[0];
        },
        &work);
    benchmark::DoNotOptimize(work.sums);
  }
  state.SetBytesProcessed(state.iterations() * kBytes);
}
BENCHMARK(MemoryRead)->UseRealTime()->Unit(benchmark::kMicrosecond);

// ---- linear ---------------------------------------------------------------------------------------

// As many weights as do not fit in a cache are used in turn, as the layers of a model are.
void Linear(benchmark::State& state, DType dtype, bool int8 = false) {
  const int64_t m = state.range(0), n = state.range(1), k = state.range(2);
  const size_t weight_bytes = kernels().linear_weight_bytes(n, k, int8 ? DType::kInt8 : dtype);
  const std::vector<float> scales(static_cast<size_t>(n), 0.01F);
  const size_t copies = std::max<size_t>(1, (size_t{600} << 20) / weight_bytes);
  const Memory weights(weight_bytes * copies);
  fill(weights.data(), dtype, static_cast<int64_t>(weight_bytes * copies / dtype_bytes(dtype)));
  const Memory x(static_cast<size_t>(m * k) * 4), out(static_cast<size_t>(m * n) * 4);
  fill(x.data(), dtype, m * k);
  const size_t workspace_bytes = kernels().linear_workspace_bytes(
      m, {.n = n, .k = k, .dtype = dtype, .scales = int8 ? scales.data() : nullptr});
  const Memory workspace(workspace_bytes);
  const LaunchContext ctx = {
      .host = pool().host_parallel(), .workspace = workspace.data(), .workspace_bytes = workspace_bytes};
  size_t copy = 0;
  for (auto _ : state) {
    const LinearWeight weight = {.data = weights.data() + weight_bytes * (copy++ % copies),
                                 .n = n,
                                 .k = k,
                                 .dtype = dtype,
                                 .packed = true,
                                 .scales = int8 ? scales.data() : nullptr};
    kernels().linear(ctx, TensorView(out.data(), dtype, m, n), TensorView(x.data(), dtype, m, k), weight,
                     nullptr);
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(weight_bytes));
  state.counters["flops"] =
      benchmark::Counter(2.0 * static_cast<double>(m * n * k), benchmark::Counter::kIsIterationInvariantRate);
}

void llama_shapes(benchmark::internal::Benchmark* bench) {
  for (const int64_t m : {1, 8, 32, 512})
    for (const auto& [n, k] :
         {std::pair<int64_t, int64_t>{3072, 2048}, {2048, 2048}, {11264, 2048}, {2048, 5632}})
      bench->Args({m, n, k});
  for (const int64_t m : {1, 8}) bench->Args({m, 32000, 2048});
  bench->UseRealTime()->Unit(benchmark::kMicrosecond);
}
BENCHMARK_CAPTURE(Linear, bf16, DType::kBFloat16)->Apply(llama_shapes);
BENCHMARK_CAPTURE(Linear, fp32, DType::kFloat32)->Apply(llama_shapes);
BENCHMARK_CAPTURE(Linear, int8_bf16, DType::kBFloat16, true)->Apply(llama_shapes);

// ---- adapters -------------------------------------------------------------------------------------

// Rows that are divided among adapters by turns; with as many as do not fit in a cache, in turn.
void AddLora(benchmark::State& state, DType dtype) {
  const int64_t m = state.range(0), n = state.range(2), k = state.range(3);
  const auto num_adapters = static_cast<int32_t>(state.range(1)), rank = static_cast<int32_t>(state.range(4));
  const size_t a_bytes = kernels().linear_weight_bytes(rank, k, dtype);
  const size_t adapter_bytes = a_bytes + kernels().linear_weight_bytes(n, rank, dtype);
  const size_t batch_bytes = adapter_bytes * static_cast<size_t>(num_adapters);
  const size_t copies = std::max<size_t>(1, (size_t{600} << 20) / batch_bytes);
  const Memory weights(batch_bytes * copies);
  fill(weights.data(), dtype, static_cast<int64_t>(batch_bytes * copies / dtype_bytes(dtype)));
  const Memory x(static_cast<size_t>(m * k) * 4), out(static_cast<size_t>(m * n) * 4);
  fill(x.data(), dtype, m * k);
  std::vector<LoraSlot> slots(static_cast<size_t>(num_adapters) * copies);
  for (size_t i = 0; i < slots.size(); ++i) {
    const std::byte* a = weights.data() + adapter_bytes * i;
    slots[i] = {.ranks = {rank}, .a = a, .b = {a + a_bytes}};
  }
  std::vector<int32_t> rows;
  std::vector<LoraSegment> segments;
  for (int32_t adapter = 0; adapter < num_adapters; ++adapter) {
    const auto begin = static_cast<int32_t>(rows.size());
    for (int64_t t = adapter; t < m; t += num_adapters) rows.push_back(static_cast<int32_t>(t));
    segments.push_back({adapter, begin, static_cast<int32_t>(rows.size())});
  }
  const int32_t num_segments[] = {num_adapters, num_adapters};
  const LoraModule module = {.first_output = 0, .num_outputs = n};
  const size_t workspace_bytes = kernels().lora_workspace_bytes(
      {.max_tokens = m, .n = n, .k = k, .max_total_rank = rank, .max_loras = num_adapters, .dtype = dtype});
  const Memory workspace(workspace_bytes);
  const LaunchContext ctx = {
      .host = pool().host_parallel(), .workspace = workspace.data(), .workspace_bytes = workspace_bytes};
  size_t copy = 0;
  for (auto _ : state) {
    kernels().add_lora(
        ctx, {.out = TensorView(out.data(), dtype, m, n),
              .x = TensorView(x.data(), dtype, m, k),
              .slots = slots.data() + static_cast<size_t>(num_adapters) * (copy++ % copies),
              .modules = &module,
              .num_modules = 1,
              .max_total_rank = rank,
              .max_segments = num_adapters,
              .batch = {.rows = rows.data(), .segments = segments.data(), .num_segments = num_segments}});
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(batch_bytes));
}

void lora_shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"rows", "adapters", "n", "k", "rank"});
  for (const int64_t rank : {16, 64}) {
    for (const auto& [m, adapters] : {std::pair<int64_t, int64_t>{1, 1}, {8, 1}, {8, 8}, {512, 1}, {512, 8}})
      for (const auto& [n, k] : {std::pair<int64_t, int64_t>{2048, 2048}, {11264, 2048}, {2048, 5632}})
        bench->Args({m, adapters, n, k, rank});
  }
  bench->UseRealTime()->Unit(benchmark::kMicrosecond);
}
BENCHMARK_CAPTURE(AddLora, bf16, DType::kBFloat16)->Apply(lora_shapes);

// ---- attention ------------------------------------------------------------------------------------

void Attention(benchmark::State& state, DType dtype) {
  const auto requests = static_cast<int32_t>(state.range(0));
  const auto query_len = static_cast<int32_t>(state.range(1)), length = static_cast<int32_t>(state.range(2));
  constexpr int32_t kHeads = 32, kKVHeads = 8, kHeadSize = 64, kBlockSize = 32;
  const int32_t pages = (length + kBlockSize - 1) / kBlockSize;
  const size_t page_bytes = kernels().kv_page_bytes(kBlockSize, kKVHeads, kHeadSize, dtype);
  const Memory cache(page_bytes * static_cast<size_t>(pages * requests));
  fill(cache.data(), dtype, static_cast<int64_t>(page_bytes / dtype_bytes(dtype)) * pages * requests);
  std::vector<int32_t> table(static_cast<size_t>(pages * requests)), starts, lengths, states;
  std::iota(table.begin(), table.end(), 0);
  for (int32_t r = 0; r <= requests; ++r) starts.push_back(r * query_len);
  lengths.assign(static_cast<size_t>(requests), length);
  for (int32_t r = 0; r < requests; ++r) states.push_back(r);
  const int64_t tokens = int64_t{requests} * query_len;
  const Memory query(static_cast<size_t>(tokens * kHeads * kHeadSize) * 4);
  const Memory out(static_cast<size_t>(tokens * kHeads * kHeadSize) * 4);
  fill(query.data(), dtype, tokens * kHeads * kHeadSize);
  const size_t workspace_bytes =
      kernels().attention_workspace_bytes(static_cast<int32_t>(tokens), length, kHeads, kKVHeads, kHeadSize);
  const Memory workspace(workspace_bytes);
  const LaunchContext ctx = {
      .host = pool().host_parallel(), .workspace = workspace.data(), .workspace_bytes = workspace_bytes};
  const TensorView out_view(out.data(), dtype, tokens, kHeads, kHeadSize);
  const TensorView query_view(query.data(), dtype, tokens, kHeads, kHeadSize);
  const KVCacheView kv_cache = {.data = cache.data(),
                                .page_stride_bytes = static_cast<int64_t>(page_bytes),
                                .num_blocks = pages * requests,
                                .block_size = kBlockSize,
                                .num_kv_heads = kKVHeads,
                                .head_size = kHeadSize,
                                .dtype = dtype};
  AttentionMetadata batch;
  batch.block_table = TensorView(table.data(), DType::kInt32, requests, pages);
  batch.state_indices = TensorView(states.data(), DType::kInt32, requests);
  batch.query_start_loc = TensorView(starts.data(), DType::kInt32, requests + 1);
  batch.seq_lens = TensorView(lengths.data(), DType::kInt32, requests);
  batch.max_query_len = query_len;
  batch.max_seq_len = length;
  AttentionLayer layer = {.dtype = dtype,
                          .num_heads = kHeads,
                          .num_kv_heads = kKVHeads,
                          .head_size = kHeadSize,
                          .block_size = kBlockSize,
                          .scale = 0.125F};
  if (const char* reason = kernels().select_attention(layer)) return state.SkipWithError(reason);
  for (auto _ : state) kernels().paged_attention(ctx, out_view, query_view, kv_cache, batch, layer);
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(page_bytes) * pages * requests);
  const double pairs = static_cast<double>(requests) * query_len * (length - 0.5 * (query_len - 1));
  state.counters["flops"] =
      benchmark::Counter(4.0 * pairs * kHeads * kHeadSize, benchmark::Counter::kIsIterationInvariantRate);
}

void attention_shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"requests", "query", "length"});
  bench->Args({1, 1, 128})->Args({1, 1, 1024})->Args({1, 1, 8192})->Args({8, 1, 1024})->Args({32, 1, 512});
  bench->Args({1, 512, 512})->Args({1, 512, 4096})->Args({1, 2048, 2048});
  bench->UseRealTime()->Unit(benchmark::kMicrosecond);
}
BENCHMARK_CAPTURE(Attention, bf16, DType::kBFloat16)->Apply(attention_shapes);
BENCHMARK_CAPTURE(Attention, fp32, DType::kFloat32)->Apply(attention_shapes);

// ---- the small ones -------------------------------------------------------------------------------

struct Rows {
  explicit Rows(benchmark::State& state, int64_t width, DType dtype)
      : rows(state.range(0)),
        in(static_cast<size_t>(rows * width) * 4),
        out(static_cast<size_t>(rows * width) * 4),
        ctx{.host = pool().host_parallel()} {
    fill(in.data(), dtype, rows * width);
  }
  int64_t rows;
  Memory in, out;
  LaunchContext ctx;
};

void RmsNorm(benchmark::State& state) {
  Rows r(state, 2048, DType::kBFloat16);
  const Memory weight(2048 * 2);
  for (auto _ : state)
    kernels().rms_norm(r.ctx, TensorView(r.out.data(), DType::kBFloat16, r.rows, 2048),
                       TensorView(r.in.data(), DType::kBFloat16, r.rows, 2048),
                       TensorView(weight.data(), DType::kBFloat16, 2048), 1e-5F, 0.0F);
}
BENCHMARK(RmsNorm)->Arg(1)->Arg(512)->UseRealTime()->Unit(benchmark::kMicrosecond);

void SiluAndMul(benchmark::State& state) {
  Rows r(state, 11264, DType::kBFloat16);
  for (auto _ : state)
    kernels().activate_and_mul(r.ctx, TensorView(r.out.data(), DType::kBFloat16, r.rows, 5632),
                               TensorView(r.in.data(), DType::kBFloat16, r.rows, 11264), Activation::kSilu);
}
BENCHMARK(SiluAndMul)->Arg(1)->Arg(512)->UseRealTime()->Unit(benchmark::kMicrosecond);

void RotaryAndCacheWrite(benchmark::State& state) {
  Rows r(state, 3072, DType::kBFloat16);
  const Memory cos_sin(4096 * 64 * 4);
  const int64_t pages = r.rows / 32 + 1;
  const size_t page_bytes = kernels().kv_page_bytes(32, 8, 64, DType::kBFloat16);
  const Memory cache(page_bytes * static_cast<size_t>(pages));
  const KVCacheView view = {.data = cache.data(),
                            .page_stride_bytes = static_cast<int64_t>(page_bytes),
                            .num_blocks = static_cast<int32_t>(pages),
                            .block_size = 32,
                            .num_kv_heads = 8,
                            .head_size = 64,
                            .dtype = DType::kBFloat16};
  std::vector<int32_t> positions(static_cast<size_t>(r.rows));
  std::iota(positions.begin(), positions.end(), 0);
  const TensorView index(positions.data(), DType::kInt32, r.rows);
  const TensorView qkv(r.in.data(), DType::kBFloat16, r.rows, 3072);
  const TensorView q = qkv.columns(0, 2048).heads(32, 64), k = qkv.columns(2048, 512).heads(8, 64),
                   v = qkv.columns(2560, 512).heads(8, 64);
  for (auto _ : state) {
    kernels().rotary_embedding(r.ctx, q, k, index, TensorView(cos_sin.data(), DType::kFloat32, 4096, 64),
                               /*interleaved=*/false);
    kernels().write_kv_cache(r.ctx, view, k, v, index);
  }
}
BENCHMARK(RotaryAndCacheWrite)->Arg(1)->Arg(512)->UseRealTime()->Unit(benchmark::kMicrosecond);

void Sample(benchmark::State& state) {
  const int64_t rows = state.range(0), vocab = state.range(1);
  const bool filtered = state.range(2) != 0;
  const auto n = static_cast<size_t>(rows);
  const Memory source(static_cast<size_t>(rows * vocab) * 4), logits(static_cast<size_t>(rows * vocab) * 4);
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0F, 3.0F);
  for (int64_t i = 0; i < rows * vocab; ++i) reinterpret_cast<float*>(source.data())[i] = normal(random);
  const std::vector<float> temperature(n, 0.8F), top_p(n, filtered ? 0.95F : 1.0F), min_p(n, 0.0F);
  const std::vector<int32_t> top_k(n, filtered ? 50 : 0);
  const std::vector<uint64_t> seed(n, 1);
  std::vector<int64_t> position(n, 0);
  std::vector<int32_t> ids(n);
  const LaunchContext ctx = {.host = pool().host_parallel()};
  for (auto _ : state) {
    std::memcpy(logits.data(), source.data(), static_cast<size_t>(rows * vocab) * 4);
    ++position[0];
    kernels().sample(ctx, {.logits = TensorView(logits.data(), DType::kFloat32, rows, vocab),
                           .temperature = temperature.data(),
                           .top_k = top_k.data(),
                           .top_p = top_p.data(),
                           .min_p = min_p.data(),
                           .seed = seed.data(),
                           .position = position.data(),
                           .sampled_token_ids = ids.data()});
  }
}
BENCHMARK(Sample)
    ->ArgNames({"rows", "vocab", "filtered"})
    ->ArgsProduct({{1, 32}, {32000, 200000}, {0, 1}})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

void HandOff(benchmark::State& state) {
  for (auto _ : state) pool().run([](void*, int32_t, int32_t) {}, nullptr);
}
BENCHMARK(HandOff)->UseRealTime();

}  // namespace
}  // namespace quire

BENCHMARK_MAIN();
