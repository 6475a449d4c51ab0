// What adapters add to the linears of a layer of the Llama-3.1-8B shape, at rank 16.
//
//   quire_cuda_lora_bench [filter]
//
// A row is a linear, a number of rows and of adapters that they have in turn. Both times are of calls in one
// graph, over copies that no cache holds together: the linear alone, and with its adapters. Beside what the
// second has more are the bytes of adapters, inputs and outputs that must move, at the rate of a copy's
// reads.
#include <algorithm>
#include <cstdint>
#include <memory>

#include "cuda_bench.h"

namespace quire {
namespace {

constexpr DType kType = DType::kBFloat16;
constexpr int32_t kRank = 16, kMaxLoras = 64;
constexpr double kBytesPerUs = 4.3e6;  // of an H200

struct Shape {
  const char* name;
  int64_t k;
  std::vector<LoraModule> modules;
  bool is_gated = false;  // and what follows is its activation
  int64_t n() const { return modules.back().first_output + modules.back().num_outputs; }
};

// The rows of a batch, those of adapter i being i, i + num, ...
struct Batch {
  Batch(int64_t tokens, int32_t num_adapters) {
    std::vector<int32_t> rows;
    std::vector<LoraSegment> segments;
    for (int32_t adapter = 0; adapter < num_adapters; ++adapter) {
      const auto first = rows.size();
      for (int64_t t = adapter; t < tokens; t += num_adapters) {
        if ((rows.size() - first) % static_cast<size_t>(kernels().lora_segment_rows) == 0)
          segments.push_back({adapter, static_cast<int32_t>(rows.size()), static_cast<int32_t>(rows.size())});
        rows.push_back(static_cast<int32_t>(t));
        ++segments.back().end;
      }
    }
    count = static_cast<int32_t>(segments.size());
    max_segments = std::max(count, static_cast<int32_t>(tokens / kernels().lora_segment_rows +
                                                        std::min<int64_t>(kMaxLoras + 1, tokens)));
    segments.resize(static_cast<size_t>(max_segments));
    rows_ = std::make_unique<Values<int32_t>>(rows);
    segments_ = std::make_unique<Values<LoraSegment>>(segments);
    count_ = std::make_unique<Values<int32_t>>(std::vector<int32_t>{count, count});
  }
  LoraBatch batch() const { return {rows_->data(), segments_->data(), count_->data()}; }
  int32_t count = 0;
  int32_t max_segments = 0;  // as an engine of so many slots has it

 private:
  std::unique_ptr<Values<int32_t>> rows_, count_;
  std::unique_ptr<Values<LoraSegment>> segments_;
};

double graph_us(int calls, const std::function<void(int)>& op) {
  for (int i = 0; i < calls; ++i) op(i);  // what is chosen or loaded at first
  check(runtime().synchronize());
  check(runtime().begin_capture(context.stream));
  for (int i = 0; i < calls; ++i) op(i);
  void* graph = nullptr;
  check(runtime().end_capture(context.stream, &graph));
  const double us = median_us(1, [&](int) { check(runtime().launch_graph(graph, context.stream)); }, 3);
  check(runtime().destroy_graph(graph));
  return us / calls;
}

void bench(const Shape& s, int64_t tokens, int32_t num_adapters) {
  const std::string name =
      std::string(s.name) + " T=" + std::to_string(tokens) + " adapters " + std::to_string(num_adapters);
  if (name.find(filter) == std::string::npos) return;
  const int64_t n = s.n();
  const auto num_modules = static_cast<int64_t>(s.modules.size());
  const int64_t a_elements = num_modules * kRank * s.k, b_elements = n * kRank;
  const int copies = copies_of(static_cast<double>(n * s.k) * 2 +
                               static_cast<double>((a_elements + b_elements) * num_adapters * 2));
  const Matrices weights(copies, kType, n, s.k, 0.02F), x(copies, kType, tokens, s.k),
      out(copies, kType, tokens, n), gated(copies, kType, tokens, n / 2),
      a(copies * num_adapters, kType, num_modules * kRank, s.k, 0.02F),
      b(copies * num_adapters, kType, n, kRank, 0.02F);
  std::vector<LoraSlot> slots;
  for (int i = 0; i < copies * num_adapters; ++i) {
    LoraSlot& slot = slots.emplace_back();
    slot.a = a[i].data;
    for (size_t m = 0; m < s.modules.size(); ++m) {
      slot.b[m] = b[i].rows(s.modules[m].first_output, s.modules[m].num_outputs).data;
      slot.ranks[m] = kRank;
    }
  }
  const Values<LoraSlot> table(slots);
  const Batch batch(tokens, num_adapters);
  const auto linear = [&](int i) {
    const LinearWeight weight = {.data = weights[i % copies].data, .n = n, .k = s.k, .dtype = kType};
    if (s.is_gated) {
      kernels().linear_activate_and_mul(context, gated[i % copies], out[i % copies], x[i % copies], weight,
                                        nullptr, Activation::kSilu);
    } else {
      kernels().linear(context, out[i % copies], x[i % copies], weight, nullptr);
    }
  };
  const auto both = [&](int i) {
    const LinearWeight weight = {.data = weights[i % copies].data, .n = n, .k = s.k, .dtype = kType};
    const LoraArgs args = {.out = out[i % copies],
                           .x = x[i % copies],
                           .slots = table.data() + i % copies * num_adapters,
                           .modules = s.modules.data(),
                           .num_modules = static_cast<int32_t>(num_modules),
                           .max_total_rank = static_cast<int32_t>(num_modules) * kRank,
                           .max_segments = batch.max_segments,
                           .batch = batch.batch()};
    if (s.is_gated) {
      kernels().linear_add_lora_activate_and_mul(context, gated[i % copies], weight, nullptr, args,
                                                 Activation::kSilu);
    } else {
      kernels().linear_add_lora(context, weight, nullptr, args);
    }
  };
  const int calls = tokens > 1024 ? 4 : 32;
  const double alone = graph_us(calls, linear);
  const double with = graph_us(calls, both);
  const double bytes = static_cast<double>((a_elements + b_elements) * num_adapters * 2) +
                       static_cast<double>(tokens * (s.k + 2 * n) * 2);
  std::printf("%-36s %9.2f us alone %9.2f with adapters %8.2f more, bytes %8.2f us\n", name.c_str(), alone,
              with, with - alone, bytes / kBytesPerUs);
  std::fflush(stdout);
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  using namespace quire;
  begin_benchmark(argc, argv);
  if (context.state == nullptr) return 1;
  const LinearWeight widest = {.n = 28672, .k = 14336, .dtype = kType};
  const LoraShape most = {.max_tokens = 8192, .max_total_rank = 3 * kRank, .dtype = kType};
  const Memory workspace(
      std::max(kernels().linear_workspace_bytes(8192, widest), kernels().lora_workspace_bytes(most)));
  context.workspace = workspace.data();
  const std::vector<Shape> shapes = {{"qkv", 4096, {{0, 4096}, {4096, 1024}, {5120, 1024}}},
                                     {"o", 4096, {{0, 4096}}},
                                     {"gate_up", 4096, {{0, 14336}, {14336, 14336}}, true},
                                     {"down", 14336, {{0, 4096}}}};
  for (const auto& [tokens, num_adapters] : std::vector<std::pair<int64_t, int32_t>>{
           {1, 1}, {4, 1}, {64, 1}, {64, 8}, {64, 64}, {128, 64}, {256, 1}, {256, 64}, {512, 8}, {8192, 1}})
    for (const Shape& shape : shapes) bench(shape, tokens, num_adapters);
  return 0;
}
