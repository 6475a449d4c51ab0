// The experts of one layer, for the shapes of published mixtures, with random weights and routing.
//
//   quire_cuda_experts_bench [filter] [kernel ...]
//
// A row is a number of tokens and a kernel, as QUIRE_EXPERTS_KERNEL names it ("auto": what is chosen). Beside
// its median time are the bytes that must be read of the experts that are touched, per second of it, the
// operations per second, and the time over its floor, whichever is longer: these bytes at the rate of a
// copy's reads, or these operations at the rate of one large product of the library's in the same run. One
// token's come with their routing too, by two ops and in one. Behind them is the time with adapters of rank
// 16 of all experts, which tokens have in turns, as chosen.
#include <cstring>
#include <memory>
#include <set>

#include "cuda_bench.h"

namespace quire {
namespace {

constexpr DType kType = DType::kBFloat16;

struct Shape {
  const char* name;
  int64_t num_experts, hidden, intermediate;
  int32_t top_k;
};

// Adapters of all experts, of random values: of an expert `a` and behind it each module's `b`.
class Adapters {
 public:
  Adapters(const Shape& s, int32_t num, int64_t tokens)
      : gate_up_modules_{{0, s.intermediate}, {s.intermediate, s.intermediate}},
        down_modules_{{0, s.hidden}},
        gate_up_(num, kType, s.num_experts, elements(gate_up_modules_, s.hidden), 0.02F),
        down_(num, kType, s.num_experts, elements(down_modules_, s.intermediate), 0.02F) {
    std::vector<LoraSlot> slots;
    for (int i = 0; i < num; ++i) {
      slots.push_back(slot(gate_up_[i], gate_up_modules_, s.hidden));
      slots.push_back(slot(down_[i], down_modules_, s.intermediate));
    }
    slots_ = std::make_unique<Values<LoraSlot>>(slots);
    std::vector<int32_t> rows;
    for (int64_t t = 0; t < tokens; ++t) rows.push_back(static_cast<int32_t>(t % num));
    rows_ = std::make_unique<Values<int32_t>>(rows);
    const auto product = [&](const std::vector<LoraModule>& modules, int first) {
      const auto count = static_cast<int32_t>(modules.size());
      return ExpertLoraArgs::Product{slots_->data() + first, modules.data(), count, count * kRank};
    };
    args_ = {.gate_up = product(gate_up_modules_, 0),
             .down = product(down_modules_, 1),
             .slot_stride = 2,
             .max_loras = num,
             .row_slots = rows_->data()};
  }
  const ExpertLoraArgs& args() const { return args_; }

 private:
  static constexpr int32_t kRank = 16;

  static int64_t elements(const std::vector<LoraModule>& modules, int64_t k) {
    int64_t sum = 0;
    for (const LoraModule& module : modules) sum += kRank * (k + module.num_outputs);
    return sum;
  }
  static LoraSlot slot(TensorView matrices, const std::vector<LoraModule>& modules, int64_t k) {
    LoraSlot slot;
    auto* at = static_cast<std::byte*>(matrices.data);
    slot.a = at;
    at += static_cast<int64_t>(modules.size()) * kRank * k * 2;
    for (size_t m = 0; m < modules.size(); ++m) {
      slot.ranks[m] = kRank;
      slot.b[m] = at;
      at += modules[m].num_outputs * kRank * 2;
    }
    slot.expert_stride_bytes = matrices.shape[1] * 2;
    return slot;
  }

  std::vector<LoraModule> gate_up_modules_, down_modules_;
  Matrices gate_up_, down_;
  std::unique_ptr<Values<LoraSlot>> slots_;
  std::unique_ptr<Values<int32_t>> rows_;
  ExpertLoraArgs args_;
};

void bench(const Shape& s, double flops_per_us, double bytes_per_us, const std::vector<const char*>& names) {
  if (std::strstr(s.name, filter) == nullptr) return;
  const float scale = 0.02F;
  const Matrices gate_up(1, kType, s.num_experts * 2 * s.intermediate, s.hidden, scale),
      down(1, kType, s.num_experts * s.hidden, s.intermediate, scale);
  const LinearWeight first_gate_up = {.data = gate_up[0].data,
                                      .n = 2 * s.intermediate,
                                      .k = s.hidden,
                                      .dtype = kType},
                     first_down = {.data = down[0].data, .n = s.hidden, .k = s.intermediate, .dtype = kType};
  const ExpertWeights experts = {.gate_up = &first_gate_up,
                                 .down = &first_down,
                                 .gate_up_stride_bytes = 2 * s.intermediate * s.hidden * 2,
                                 .down_stride_bytes = s.hidden * s.intermediate * 2,
                                 .num_experts = static_cast<int32_t>(s.num_experts)};
  for (const int64_t tokens : {1, 4, 16, 64, 128, 256, 1024, 8192}) {
    const int64_t choices = tokens * s.top_k;
    const Matrices x(1, kType, tokens, s.hidden), out(1, kType, tokens, s.hidden),
        logits(1, DType::kFloat32, tokens, s.num_experts);
    const Memory ids(static_cast<size_t>(choices) * 4), weights(static_cast<size_t>(choices) * 4);
    const ExpertRoutingArgs routing = {.logits = logits[0],
                                       .top_k = s.top_k,
                                       .renormalize = true,
                                       .expert_ids = static_cast<int32_t*>(ids.data()),
                                       .weights = static_cast<float*>(weights.data())};
    const auto route = [&](int) { kernels().route_to_experts(context, routing); };
    std::printf("%s %lld tokens: routing %.2f us\n", s.name, static_cast<long long>(tokens),
                median_us(1, route));
    std::vector<int32_t> chosen(static_cast<size_t>(choices));
    check(runtime().copy(chosen.data(), ids.data(), chosen.size() * 4, nullptr));
    check(runtime().synchronize());
    const auto touched = static_cast<double>(std::set<int32_t>(chosen.begin(), chosen.end()).size());
    const double bytes = touched * static_cast<double>(3 * s.intermediate * s.hidden * 2);
    const double flops = static_cast<double>(choices) * static_cast<double>(6 * s.intermediate * s.hidden);
    const double floor = std::max(bytes / bytes_per_us, flops / flops_per_us);
    const Memory workspace(kernels().fused_experts_workspace_bytes(tokens, s.top_k, experts, nullptr));
    LaunchContext launch = context;
    launch.workspace = workspace.data();
    const FusedExpertsArgs args = {.out = out[0],
                                   .x = x[0],
                                   .expert_ids = routing.expert_ids,
                                   .weights = routing.weights,
                                   .top_k = s.top_k,
                                   .experts = experts,
                                   .activation = Activation::kSilu};
    for (const char* name : names) {
      if (tokens > 1024 && (std::strcmp(name, "plain") == 0 || std::strcmp(name, "few_rows") == 0)) continue;
      setenv("QUIRE_EXPERTS_KERNEL", name, 1);
      const double us =
          median_us(1, [&](int) { kernels().fused_experts(launch, args); }, tokens > 1024 ? 4 : 10);
      std::printf("  %-10s %10.2f us %7.0f GB/s %7.1f TFLOP/s %6.2f of the floor\n", name, us,
                  bytes / us / 1000, flops / us / 1e6, us / floor);
      std::fflush(stdout);
    }
    unsetenv("QUIRE_EXPERTS_KERNEL");
    for (const int32_t num : {1, 8}) {
      if (num > tokens) continue;
      const Adapters adapters(s, num, tokens);
      const Memory scratch(
          kernels().fused_experts_workspace_bytes(tokens, s.top_k, experts, &adapters.args()));
      LaunchContext with = context;
      with.workspace = scratch.data();
      FusedExpertsArgs adapted = args;
      adapted.loras = &adapters.args();
      std::printf("  with %d adapters %.2f us\n", num,
                  median_us(1, [&](int) { kernels().fused_experts(with, adapted); }, tokens > 1024 ? 4 : 10));
      std::fflush(stdout);
    }
    if (tokens > 1) continue;
    const double two = median_us(1, [&](int) {
      kernels().route_to_experts(launch, routing);
      kernels().fused_experts(launch, args);
    });
    const double one = median_us(1, [&](int) { kernels().routed_experts(launch, routing, args); });
    std::printf("  with routing: %.2f us, in one %.2f us\n", two, one);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  using namespace quire;
  begin_benchmark(argc, argv);
  if (context.state == nullptr) return 1;
  std::vector<const char*> names(argv + std::min(argc, 2), argv + argc);
  if (names.empty()) names.push_back("auto");
  const LinearWeight widest = {.n = 8192, .k = 8192, .dtype = DType::kBFloat16};
  const Memory workspace(kernels().linear_workspace_bytes(8192, widest));
  context.workspace = workspace.data();
  const double flops = card_flops_per_us(), bytes = card_bytes_per_us();
  std::printf("one large product %.0f TFLOP/s, a large matrix times a vector %.0f GB/s\n", flops / 1e6,
              bytes / 1e3);
  bench({"Mixtral-8x7B", 8, 4096, 14336, 2}, flops, bytes, names);
  bench({"Qwen3-30B-A3B", 128, 2048, 768, 8}, flops, bytes, names);
  bench({"GPT-OSS-20B", 32, 2880, 2880, 4}, flops, bytes, names);
  return 0;
}
