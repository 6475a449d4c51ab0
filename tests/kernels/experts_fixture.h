// What the tests of mixtures share: routing and experts as a table wants them, and both in double precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include "kernel_test.h"

namespace quire {

class ExpertsTest : public KernelTest {
 protected:
  // What each token chose, and its weights.
  struct Routing {
    Array<int32_t> ids;
    Array<float> weights;
  };
  Routing route(const Tensor& logits, ExpertRoutingArgs args, ThreadPool* pool = nullptr) {
    const auto choices = static_cast<size_t>(logits.view().shape[0] * args.top_k);
    Routing out{Array<int32_t>(choices, 77), Array<float>(choices, 77.0F)};
    args.logits = logits;
    args.expert_ids = out.ids.data();
    args.weights = out.weights.data();
    kernels().route_to_experts(context(pool), args);
    wait_for_device();
    return out;
  }
};

// Of one token, in double precision.
struct Choice {
  std::vector<int32_t> ids;
  std::vector<double> weights;
};

inline Choice reference_choice(const std::vector<double>& logits, const std::vector<double>& correction,
                               const ExpertRoutingArgs& args) {
  const size_t n = logits.size();
  std::vector<double> score(n), choice(n);
  double sum = 0;
  for (size_t e = 0; e < n; ++e) sum += std::exp(logits[e]);
  for (size_t e = 0; e < n; ++e) {
    score[e] =
        args.scoring == ExpertScoring::kSigmoid ? 1 / (1 + std::exp(-logits[e])) : std::exp(logits[e]) / sum;
    choice[e] = score[e] + (correction.empty() ? 0.0 : correction[e]);
  }
  const size_t groups = static_cast<size_t>(args.num_groups), size = n / groups;
  std::vector<double> group_score(groups);
  for (size_t g = 0; g < groups; ++g) {
    std::vector<double> members(choice.begin() + static_cast<long>(g * size),
                                choice.begin() + static_cast<long>((g + 1) * size));
    std::ranges::sort(members, std::greater<>());
    group_score[g] = members[0] + (correction.empty() || size < 2 ? 0.0 : members[1]);
  }
  std::vector<size_t> order(groups);
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return group_score[a] > group_score[b]; });
  std::vector<int32_t> open;
  for (size_t e = 0; e < n; ++e) {
    const auto top = order.begin() + args.num_top_groups;
    if (std::find(order.begin(), top, e / size) != top) open.push_back(static_cast<int32_t>(e));
  }
  const auto at = [](const std::vector<double>& values, int32_t i) { return values[static_cast<size_t>(i)]; };
  std::ranges::stable_sort(open, [&](int32_t a, int32_t b) { return at(choice, a) > at(choice, b); });
  Choice out;
  double total = 0;
  for (int32_t j = 0; j < args.top_k; ++j) {
    out.ids.push_back(open[static_cast<size_t>(j)]);
    out.weights.push_back(at(score, out.ids.back()));
    total += out.weights.back();
  }
  for (double& weight : out.weights)
    weight *= static_cast<double>(args.scale) / (args.renormalize ? total : 1.0);
  return out;
}

// Experts as a table wants them, and what they compute in double precision.
class Experts {
 public:
  Experts(const KernelTable& kernels, const LaunchContext& ctx, DType dtype, int64_t count, int64_t hidden,
          int64_t intermediate, bool biases)
      : gate_up_(std::move(Tensor(dtype, count * 2 * intermediate, hidden).randomize(2, 0.2F))),
        down_(std::move(Tensor(dtype, count * hidden, intermediate).randomize(3, 0.2F))),
        gate_up_memory_(pack(kernels, ctx, gate_up_, count, gate_up_weight_)),
        down_memory_(pack(kernels, ctx, down_, count, down_weight_)),
        gate_up_bias_(static_cast<size_t>(count * 2 * intermediate)),
        down_bias_(static_cast<size_t>(count * hidden)),
        biases_(biases) {
    for (size_t i = 0; i < gate_up_bias_.size(); ++i) gate_up_bias_[i] = std::sin(static_cast<float>(i));
    for (size_t i = 0; i < down_bias_.size(); ++i) down_bias_[i] = std::cos(static_cast<float>(i));
    view_ = {.gate_up = &gate_up_weight_,
             .down = &down_weight_,
             .gate_up_stride_bytes = static_cast<int64_t>(gate_up_memory_.bytes()) / count,
             .down_stride_bytes = static_cast<int64_t>(down_memory_.bytes()) / count,
             .gate_up_bias = biases ? gate_up_bias_.data() : nullptr,
             .down_bias = biases ? down_bias_.data() : nullptr,
             .num_experts = static_cast<int32_t>(count)};
  }
  const ExpertWeights& view() const { return view_; }

  // What an adapter adds to the outputs of one product of one row.
  using Addition = std::function<void(bool is_gate_up, const double* x, std::vector<double>& out)>;

  // One token's row at one expert.
  std::vector<double> compute(size_t expert, const double* x, Activation activation,
                              const Addition& add = {}) const {
    const auto hidden = static_cast<size_t>(gate_up_weight_.k), inter = static_cast<size_t>(down_weight_.k);
    if (gate_up_values_.empty()) {
      gate_up_values_ = gate_up_.values();
      down_values_ = down_.values();
    }
    std::vector<double> both(2 * inter), inner(inter), out(hidden);
    for (size_t i = 0; i < 2 * inter; ++i) {
      const size_t row = expert * 2 * inter + i;
      both[i] = (biases_ ? static_cast<double>(gate_up_bias_[row]) : 0.0) +
                reference::dot(&gate_up_values_[row * hidden], x, hidden);
    }
    if (add) add(/*is_gate_up=*/true, x, both);
    for (size_t i = 0; i < inter; ++i) {
      const double g = both[i], u = both[inter + i];
      if (activation == Activation::kClampedSwiglu) {
        const double gate = std::min(g, 7.0);
        inner[i] = gate / (1 + std::exp(-1.702 * gate)) * (std::clamp(u, -7.0, 7.0) + 1);
      } else {
        inner[i] = (activation == Activation::kGeluTanh ? reference::gelu_tanh(g) : reference::silu(g)) * u;
      }
    }
    for (size_t r = 0; r < hidden; ++r) {
      const size_t row = expert * hidden + r;
      out[r] = (biases_ ? static_cast<double>(down_bias_[row]) : 0.0) +
               reference::dot(&down_values_[row * inter], inner.data(), inter);
    }
    if (add) add(/*is_gate_up=*/false, inner.data(), out);
    return out;
  }

 private:
  static Memory pack(const KernelTable& kernels, const LaunchContext& ctx, const Tensor& rows, int64_t count,
                     LinearWeight& weight) {
    const DType dtype = rows.view().dtype;
    const int64_t n = rows.view().shape[0] / count, k = rows.view().shape[1];
    const bool packs = kernels.linear_pack_rows != nullptr;
    const size_t each =
        (packs ? kernels.linear_weight_bytes(n, k, dtype) : static_cast<size_t>(n * k) * dtype_bytes(dtype)) +
        63;
    const size_t stride = each / 64 * 64;
    Memory memory(stride * static_cast<size_t>(count), 0);
    for (int64_t e = 0; e < count; ++e) {
      std::byte* data = memory.data() + static_cast<size_t>(e) * stride;
      const LinearWeight one = {.data = data, .n = n, .k = k, .dtype = dtype, .packed = packs};
      if (packs) {
        kernels.linear_pack_rows(ctx, one, 0, rows.view().rows(e * n, n));
      } else {
        std::memcpy(data, rows.view().at(e * n), static_cast<size_t>(n * k) * dtype_bytes(dtype));
      }
      if (e == 0) weight = one;
    }
    return memory;
  }

  Tensor gate_up_, down_;
  LinearWeight gate_up_weight_, down_weight_;
  Memory gate_up_memory_, down_memory_;
  Array<float> gate_up_bias_, down_bias_;
  bool biases_;
  ExpertWeights view_;
  mutable std::vector<double> gate_up_values_, down_values_;
};

// What is between the products is rounded, too: errors are of the size of the rows, not of the single values.
inline void expect_near(const std::vector<double>& values, const std::vector<double>& expected, DType dtype) {
  double error = 0, size = 0, largest = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double difference = std::abs(values[i] - expected[i]);
    error += difference * difference;
    size += expected[i] * expected[i];
    largest = std::max(largest, difference);
    ASSERT_FALSE(std::isnan(difference)) << "element " << i;
  }
  const double tolerance = dtype == DType::kFloat32 ? 2e-6 : dtype == DType::kFloat16 ? 1e-3 : 8e-3;
  EXPECT_LE(std::sqrt(error / size), tolerance);
  EXPECT_LE(largest, 16 * tolerance * std::sqrt(size / static_cast<double>(values.size())));
}

}  // namespace quire
