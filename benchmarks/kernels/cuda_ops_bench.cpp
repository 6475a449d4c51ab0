// The CUDA kernels that move memory, linears of two kinds of weights among them, at the shapes of
// Llama-3.1-8B: hidden 4096, intermediate 14336, vocabulary 128256; and the one that makes a step's inputs.
//
//   quire_cuda_ops_bench [filter | card]
//
// card: how quick this card is, which other rows can be judged by; cards of one name differ by some per cent.
// Prints the median time of a call, measured by events around a stretch of calls that together touch more
// memory than the cache holds, and the bytes that must be moved per second of it. With QUIRE_BENCH_SECONDS
// set a line behind each is what it is when it goes on for so long: its time, power and clock.
#include <cstring>
#include <string_view>

#include "cuda_bench.h"

namespace quire {
namespace {

constexpr DType kType = DType::kBFloat16;
constexpr int64_t kHidden = 4096, kIntermediate = 14336, kVocab = 128256;

void bench_rows(int64_t rows) {
  const auto n = static_cast<double>(rows);
  {
    const double bytes = n * kHidden * 2;
    const int copies = copies_of(2 * bytes);
    const Matrices x(copies, kType, rows, kHidden), out(copies, kType, rows, kHidden),
        weights(1, kType, 1, kHidden);
    const TensorView weight(weights[0].data, kType, kHidden);
    measure(label("rms_norm", "T", rows), copies, 2 * bytes,
            [&](int i) { kernels().rms_norm(context, out[i], x[i], weight, 1e-5F, 0.0F); });
    measure(label("fused_add_rms_norm", "T", rows), copies, 4 * bytes,
            [&](int i) { kernels().fused_add_rms_norm(context, x[i], out[i], x[i], weight, 1e-5F, 0.0F); });
    measure(label("fused_norm_add_rms_norm", "T", rows), copies, 4 * bytes, [&](int i) {
      const RmsNormParams norm = {weight, 1e-5F, 0.0F};
      kernels().fused_norm_add_rms_norm(context, x[i], out[i], x[i], norm, norm);
    });
    measure(label("layer_norm", "T", rows), copies, 2 * bytes,
            [&](int i) { kernels().layer_norm(context, out[i], x[i], weight, weight, 1e-5F); });
    const TensorView head_weight(weight.data, kType, 128);
    measure(label("rms_norm of 32 heads of 128", "T", rows), copies, 2 * bytes, [&](int i) {
      const TensorView heads = x[i].heads(32, 128);
      kernels().rms_norm(context, heads, heads, head_weight, 1e-5F, 0.0F);
    });
    std::vector<int32_t> ids;
    for (int64_t t = 0; t < rows; ++t) ids.push_back(static_cast<int32_t>(t * 7919 % kVocab));
    const Values<int32_t> index(ids);
    const Matrices table(1, kType, kVocab, kHidden);
    const LinearWeight weight_table = {.data = table[0].data, .n = kVocab, .k = kHidden, .dtype = kType};
    measure(label("embedding", "T", rows), copies, 2 * bytes, [&](int i) {
      kernels().embedding(context, out[i], TensorView(index.data(), DType::kInt32, rows), weight_table, 0);
    });
  }
  const double bytes = n * kIntermediate * 2;
  const int copies = copies_of(3 * bytes);
  const Matrices x(copies, kType, rows, 2 * kIntermediate), out(copies, kType, rows, kIntermediate);
  measure(label("silu_and_mul", "T", rows), copies, 3 * bytes,
          [&](int i) { kernels().activate_and_mul(context, out[i], x[i], Activation::kSilu); });
}

// A layer's products with weights of 16 bits and of 8, and gate and up with their activation; bytes are the
// weights'.
void bench_linear(int64_t rows) {
  constexpr int64_t kQueriesKeysValues = 6144;
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{kQueriesKeysValues, kHidden},
                             {kHidden, kHidden},
                             {2 * kIntermediate, kHidden},
                             {kHidden, kIntermediate}}) {
    const auto name = [&](const std::string& kind) {
      const std::string op = "linear " + std::to_string(n) + " x " + std::to_string(k) + " " + kind;
      return label(op.c_str(), "T", rows);
    };
    const auto bytes = static_cast<double>(n * k);
    const int copies = copies_of(bytes);
    const Matrices weights(copies, kType, n, k), x(1, kType, rows, k), out(1, kType, rows, n);
    const Values<float> scales(std::vector<float>(static_cast<size_t>(n), 0.01F));
    LinearWeight weight = {.n = n, .k = k, .dtype = kType};
    const auto run = [&](int i) {
      weight.data = weights[i].data;
      kernels().linear(context, out[0], x[0], weight, nullptr);
    };
    measure(name("bf16"), copies, 2 * bytes, run);
    if (n == 2 * kIntermediate) {
      const Matrices activated(1, kType, rows, n / 2);
      measure(name("bf16, activated"), copies, 2 * bytes, [&](int i) {
        weight.data = weights[i].data;
        kernels().linear_activate_and_mul(context, activated[0], out[0], x[0], weight, nullptr,
                                          Activation::kSilu);
      });
    }
    weight.scales = scales.data();
    measure(name("int8"), copies, bytes, run);
  }
}

struct SampleCase {
  const char* name;
  float temperature;
  int32_t top_k;
  float top_p, min_p;
};

void bench_sampling(int64_t rows) {
  const auto n = static_cast<size_t>(rows);
  const double bytes = static_cast<double>(rows * kVocab) * 4;
  const int copies = copies_of(bytes);
  // Uniform in [-16, 16): the likeliest hundreds of tokens hold nearly everything.
  const Matrices logits(copies, DType::kFloat32, rows, kVocab, 16.0F);
  const Values<uint64_t> seed(std::vector<uint64_t>(n, 1));
  const Values<int64_t> position(std::vector<int64_t>(n, 1));
  const Values<int32_t> ids(std::vector<int32_t>(n, 0)), ranks(std::vector<int32_t>(n, 0));
  const SampleCase cases[] = {{"greedy", 0, 0, 1, 0},
                              {"random", 1, 0, 1, 0},
                              {"top_k=50", 1, 50, 1, 0},
                              {"top_p=0.9", 1, 0, 0.9F, 0},
                              {"top_k=50 top_p=0.9", 1, 50, 0.9F, 0},
                              {"min_p=0.05", 1, 0, 1, 0.05F},
                              {"top_p=0.9, hot: no list", 30, 0, 0.9F, 0}};
  const Values<uint32_t> counters(std::vector<uint32_t>(n, 0));
  for (const SampleCase& c : cases) {
    const Values<float> temperature(std::vector<float>(n, c.temperature)),
        top_p(std::vector<float>(n, c.top_p)), min_p(std::vector<float>(n, c.min_p));
    const Values<int32_t> top_k(std::vector<int32_t>(n, c.top_k));
    measure(label((std::string("sample ") + c.name).c_str(), "R", rows), copies, bytes, [&](int i) {
      kernels().sample(context, {.logits = logits[i],
                                 .temperature = temperature.data(),
                                 .top_k = top_k.data(),
                                 .top_p = top_p.data(),
                                 .min_p = min_p.data(),
                                 .seed = seed.data(),
                                 .position = position.data(),
                                 .sampled_token_ids = ids.data(),
                                 .row_counters = counters.data(),
                                 .all_greedy = c.temperature == 0,
                                 .any_filter = c.top_k > 0 || c.top_p < 1 || c.min_p > 0});
    });
  }
  const Values<float> logprob(std::vector<float>(n, 0));
  const Values<int32_t> top_ids(std::vector<int32_t>(n * 20, 0));
  const Values<float> top(std::vector<float>(n * 20, 0));
  measure(label("top_logprobs of 20", "R", rows), copies, bytes, [&](int i) {
    kernels().top_logprobs(context, {.logits = logits[i],
                                     .chosen_token_id = ids.data(),
                                     .num_top = 20,
                                     .chosen_logprob = logprob.data(),
                                     .chosen_rank = ranks.data(),
                                     .top_token_ids = top_ids.data(),
                                     .top_logprobs = top.data()});
  });
  measure(label("log_softmax", "R", rows), copies, 2 * bytes,
          [&](int i) { kernels().log_softmax(context, logits[i], logits[i]); });
}

// A step of `rows` requests with `tokens` each; every one of them a write of its tokens and of its blocks, as
// when prompts arrive.
void bench_inputs(int32_t rows, int32_t tokens) {
  constexpr int32_t kBlockSize = 16;
  const int32_t blocks = (tokens + kBlockSize - 1) / kBlockSize, num_values = rows * (tokens + blocks);
  const auto n = static_cast<size_t>(rows);
  const auto rounded = [](size_t bytes) { return (bytes + 15) / 16 * 16; };
  // What is sent: starts, computed, slots, writes, values.
  const size_t starts_at = 0, computed_at = rounded((n + 1) * 4), states_at = computed_at + rounded(n * 4),
               writes_at = states_at + rounded(n * 4),
               values_at = writes_at + rounded(2 * n * sizeof(RowWrite)),
               bytes = values_at + rounded(static_cast<size_t>(num_values) * 4);
  void* pinned = nullptr;
  check(runtime().allocate_pinned(&pinned, bytes));
  std::memset(pinned, 0, bytes);
  const auto host = [&](size_t at) {
    return reinterpret_cast<int32_t*>(static_cast<std::byte*>(pinned) + at);
  };
  auto* writes = reinterpret_cast<RowWrite*>(host(writes_at));
  for (int32_t r = 0; r < rows; ++r) {
    host(starts_at)[r + 1] = (r + 1) * tokens;
    host(states_at)[r] = r;
    const int32_t first = r * (tokens + blocks);
    writes[2 * r] = {.table = 0, .row = r, .begin = 0, .count = tokens, .first = first};
    writes[2 * r + 1] = {.table = 1, .row = r, .begin = 0, .count = blocks, .first = first + tokens};
  }
  const Memory staged(bytes), table(n * static_cast<size_t>(tokens) * 4),
      block_table(n * static_cast<size_t>(blocks) * 4), ids(n * static_cast<size_t>(tokens) * 4),
      positions(n * static_cast<size_t>(tokens) * 4), slots(n * static_cast<size_t>(tokens) * 8),
      starts((n + 1) * 4), lens(n * 4), states(n * 4);
  const auto device = [&](size_t at) {
    return reinterpret_cast<int32_t*>(static_cast<std::byte*>(staged.data()) + at);
  };
  const auto ints = [](const Memory& memory) { return static_cast<int32_t*>(memory.data()); };
  PrepareInputsArgs args;
  args.bytes = {staged.data(), pinned, bytes};
  args.row_writes = {{ints(table), ints(block_table)},
                     {tokens, blocks},
                     reinterpret_cast<RowWrite*>(device(writes_at)),
                     device(values_at),
                     2 * rows,
                     num_values};
  args.query_start_loc = device(starts_at);
  args.num_computed = device(computed_at);
  args.padded_state_indices = ints(states);
  args.state_indices = device(states_at);
  args.num_rows = args.padded_rows = rows;
  args.num_tokens = args.padded_tokens = rows * tokens;
  args.tokens = ints(table);
  args.tokens_stride = tokens;
  args.input_ids = ints(ids);
  args.positions = ints(positions);
  args.padded_query_start_loc = ints(starts);
  args.seq_lens = ints(lens);
  args.groups[0] = {ints(block_table), blocks, kBlockSize, static_cast<int64_t*>(slots.data())};
  args.num_groups = 1;
  measure("prepare_inputs R=" + std::to_string(rows) + " T=" + std::to_string(rows * tokens), 1,
          static_cast<double>(bytes), [&](int) { kernels().batch->prepare_inputs(context, args); });
  check(runtime().release_pinned(pinned));
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  using namespace quire;
  begin_benchmark(argc, argv);
  if (context.state == nullptr) std::fprintf(stderr, "linears are left out\n");
  const float scale = 1.0F;
  const LinearWeight widest = {.n = 2 * kIntermediate, .k = kHidden, .dtype = kType, .scales = &scale};
  const size_t workspace_bytes = std::max(kernels().sampling_workspace_bytes(256, kVocab),
                                          kernels().linear_workspace_bytes(8192, widest));
  const Memory workspace(workspace_bytes);
  context.workspace = workspace.data();
  context.workspace_bytes = workspace_bytes;
  if (std::string_view(filter) == "card") {
    if (context.state == nullptr) return 1;
    std::printf("a large matrix times a vector %.0f GB/s, one large product of cuBLASLt's %.0f TFLOP/s\n",
                card_bytes_per_us() / 1e3, card_flops_per_us() / 1e6);
    return 0;
  }
  for (const int64_t rows : {1, 64, 256, 2048, 8192}) bench_rows(rows);
  if (context.state != nullptr) {
    for (const int64_t rows : {1, 8, 16, 24, 32, 64, 128, 256, 2048}) bench_linear(rows);
  }
  for (const int64_t rows : {1, 64, 256}) bench_sampling(rows);
  for (const auto& [rows, tokens] : {std::pair{1, 1}, {256, 1}, {16, 128}, {8, 1024}, {1, 16384}})
    bench_inputs(rows, tokens);
  return 0;
}
