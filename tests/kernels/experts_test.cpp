// Mixtures of experts: who goes where, and what is computed of it.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>

#include "kernel_test.h"

namespace quire {
namespace {

class ExpertsTest : public KernelTest {
 protected:
  void SetUp() override {
    KernelTest::SetUp();
    if (kernels().fused_experts == nullptr) GTEST_SKIP() << "no kernels for mixtures";
  }

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

Choice reference_choice(const std::vector<double>& logits, const std::vector<double>& correction,
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

TEST_P(ExpertsTest, RoutingMatchesTheReference) {
  ThreadPool pool(2);
  const ExpertRoutingArgs kinds[] = {
      {.top_k = 2, .renormalize = true},
      {.top_k = 8},
      {.scoring = ExpertScoring::kSigmoid, .top_k = 1, .renormalize = true, .scale = 2.5F},
      {.scoring = ExpertScoring::kSigmoid, .top_k = 6, .num_groups = 4, .num_top_groups = 3},
      {.top_k = 4, .num_groups = 4, .num_top_groups = 2, .renormalize = true, .scale = 0.5F},
  };
  // Devices have a kernel for few tokens and one for many.
  const std::pair<int64_t, int64_t> shapes[] = {{37, 8},   {37, 64},  {37, 128}, {37, 160},
                                                {5, 1000}, {300, 64}, {300, 160}};
  for (const auto& [tokens, num_experts] : shapes) {
    const Tensor logits = std::move(Tensor(DType::kFloat32, tokens, num_experts, 3).randomize(1, 2.0F));
    Array<float> correction(static_cast<size_t>(num_experts));
    for (size_t e = 0; e < correction.size(); ++e) correction[e] = 0.1F * std::sin(static_cast<float>(3 * e));
    for (size_t kind = 0; kind < std::size(kinds); ++kind) {
      for (const bool corrected : {false, true}) {
        SCOPED_TRACE(testing::Message() << tokens << " tokens, " << num_experts << " experts, kind " << kind
                                        << " " << corrected);
        ExpertRoutingArgs args = kinds[kind];
        if (corrected) args.correction = correction.data();
        const Routing got = route(logits, args, &pool);
        const std::vector<double> values = logits.values();
        for (int64_t t = 0; t < tokens; ++t) {
          const auto first = values.begin() + t * num_experts;
          std::vector<double> offsets;
          if (corrected) offsets.assign(correction.begin(), correction.end());
          const Choice expected = reference_choice({first, first + num_experts}, offsets, args);
          for (int32_t j = 0; j < args.top_k; ++j) {
            const auto i = static_cast<size_t>(t * args.top_k + j);
            ASSERT_EQ(got.ids[i], expected.ids[static_cast<size_t>(j)]) << "token " << t << ", choice " << j;
            ASSERT_NEAR(static_cast<double>(got.weights[i]), expected.weights[static_cast<size_t>(j)], 1e-6);
          }
        }
      }
    }
  }
}

TEST_P(ExpertsTest, TiesGoToTheLowestIdAndPaddingNowhere) {
  for (const int64_t tokens : {3, 300}) {
    Tensor logits(DType::kFloat32, tokens, 16);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t e = 0; e < 16; ++e) logits.set(t, e, e == 11 || e == 3 ? 2.0F : 1.0F);
    }
    Array<int32_t> num_tokens = {static_cast<int32_t>(tokens - 1)};
    const Routing got = route(logits, {.top_k = 4, .renormalize = true, .num_tokens = num_tokens.data()});
    std::vector<int32_t> expected;
    for (int64_t t = 0; t < tokens - 1; ++t) expected.insert(expected.end(), {3, 11, 0, 1});
    expected.insert(expected.end(), 4, -1);
    EXPECT_EQ(read(got.ids), expected);
    for (size_t i = got.weights.size() - 4; i < got.weights.size(); ++i) EXPECT_EQ(got.weights[i], 0.0F);
  }
}

TEST_P(ExpertsTest, RoutingCountsWhatEachExpertWasChosenBy) {
  ThreadPool pool(2);
  const std::pair<int64_t, int64_t> shapes[] = {{101, 8}, {101, 60}, {101, 300}, {301, 60}};
  for (const auto& [tokens, num_experts] : shapes) {
    const int32_t top_k = 3;
    const Tensor logits = std::move(Tensor(DType::kFloat32, tokens, num_experts).randomize(5, 2.0F));
    Array<int32_t> num_tokens = {static_cast<int32_t>(tokens - 11)};
    Array<uint64_t> counts(static_cast<size_t>(num_experts), 7);
    std::vector<uint64_t> expected(static_cast<size_t>(num_experts), 7);
    for (int call = 0; call < 2; ++call) {
      const Routing got =
          route(logits, {.top_k = top_k, .num_tokens = num_tokens.data(), .counts = counts.data()}, &pool);
      const std::vector<int32_t> ids = read(got.ids);
      for (size_t i = 0; i < static_cast<size_t>((tokens - 11) * top_k); ++i)
        ++expected[static_cast<size_t>(ids[i])];
    }
    EXPECT_EQ(read(counts), expected) << num_experts << " experts";
  }
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

  // One token's row at one expert.
  std::vector<double> compute(size_t expert, const double* x, Activation activation) const {
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
void expect_near(const std::vector<double>& values, const std::vector<double>& expected, DType dtype) {
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

TEST_P(ExpertsTest, MatchesTheReference) {
  ThreadPool pool(2);
  struct Case {
    int64_t tokens, experts, hidden, intermediate;
    int32_t top_k;
    bool biases;
    Activation activation;
    int64_t padding;         // of rows, in elements
    bool is_skewed = false;  // every token goes to expert 0
  };
  std::vector<Case> cases = {{1, 8, 64, 48, 2, false, Activation::kSilu, 0},
                             {1, 12, 320, 272, 9, true, Activation::kClampedSwiglu, 0},
                             {1, 4, 33, 17, 4, true, Activation::kClampedSwiglu, 3},
                             {1, 4, 2056, 264, 3, true, Activation::kSilu, 0},
                             {1, 3, 136, 2064, 2, false, Activation::kGeluTanh, 0},
                             {5, 16, 96, 40, 3, false, Activation::kSilu, 3},
                             {40, 4, 128, 64, 2, true, Activation::kSilu, 8},
                             {60, 16, 136, 272, 3, true, Activation::kSilu, 8},
                             {60, 16, 200, 136, 3, true, Activation::kSilu, 8, true},
                             {300, 6, 64, 96, 1, false, Activation::kClampedSwiglu, 0},
                             {150, 3, 80, 544, 3, true, Activation::kClampedSwiglu, 8},
                             {9, 40, 64, 48, 20, true, Activation::kSilu, 0},
                             {400, 3, 200, 264, 2, true, Activation::kGeluTanh, 8},
                             // More choices than one block of a device sorts.
                             {1100, 9, 48, 32, 4, false, Activation::kSilu, 0}};
  if (is_cuda()) {
    // More tiles than it has multiprocessors, and an expert with more tokens than a tile.
    cases.push_back({40, 64, 520, 264, 4, true, Activation::kSilu, 8, true});
    cases.push_back({130, 64, 264, 264, 4, false, Activation::kClampedSwiglu, 8, true});
    // One token's rows in slots of eight, four and one, once around and more.
    cases.push_back({1, 12, 640, 576, 9, true, Activation::kClampedSwiglu, 0});
    cases.push_back({1, 5, 2880, 1472, 4, true, Activation::kSilu, 0});
    cases.push_back({1, 3, 4096, 2560, 3, false, Activation::kGeluTanh, 0});
    cases.push_back({1, 2, 1024, 14336, 2, false, Activation::kSilu, 0});
  }
  // Devices have several kernels for them; "" is the one that is taken.
  const std::vector<const char*> names =
      is_cuda() ? std::vector<const char*>{"", "plain", "few_rows", "wgmma"} : std::vector<const char*>{""};
  for (const DType dtype : float_types()) {
    for (const Case& c : cases) {
      SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " " << c.tokens << " of " << c.experts);
      const Experts experts(kernels(), context(), dtype, c.experts, c.hidden, c.intermediate, c.biases);
      const Tensor x = std::move(Tensor(dtype, c.tokens, c.hidden, c.padding).randomize(5));
      Tensor logits(DType::kFloat32, c.tokens, c.experts);
      logits.randomize(6);
      for (int64_t t = 0; c.is_skewed && t < c.tokens; ++t) logits.set(t, 0, 5.0F);
      Routing routing = route(logits, {.top_k = c.top_k, .renormalize = true});
      routing.ids[routing.ids.size() - 1] = -1;  // goes nowhere
      const std::vector<double> inputs = x.values();
      std::vector<double> expected(static_cast<size_t>(c.tokens * c.hidden));
      for (size_t i = 0; i < routing.ids.size(); ++i) {
        if (routing.ids[i] < 0) continue;
        const size_t t = i / static_cast<size_t>(c.top_k);
        const auto row = experts.compute(static_cast<size_t>(routing.ids[i]),
                                         &inputs[t * static_cast<size_t>(c.hidden)], c.activation);
        for (size_t r = 0; r < row.size(); ++r)
          expected[t * row.size() + r] += static_cast<double>(routing.weights[i]) * row[r];
      }
      for (const char* name : names) {
        SCOPED_TRACE(name);
        setenv("QUIRE_EXPERTS_KERNEL", name, 1);
        set_workspace(kernels().fused_experts_workspace_bytes(c.tokens, c.top_k, experts.view()));
        const Tensor out(dtype, c.tokens, c.hidden, c.padding);
        kernels().fused_experts(context(&pool), {.out = out,
                                                 .x = x,
                                                 .expert_ids = routing.ids.data(),
                                                 .weights = routing.weights.data(),
                                                 .top_k = c.top_k,
                                                 .experts = experts.view(),
                                                 .activation = c.activation});
        expect_near(out.values(), expected, dtype);
      }
      unsetenv("QUIRE_EXPERTS_KERNEL");
    }
  }
}

TEST_P(ExpertsTest, RoutingAndExpertsInOneAreTheSame) {
  if (kernels().routed_experts == nullptr) GTEST_SKIP() << "two calls";
  const ExpertRoutingArgs kinds[] = {
      {.top_k = 8, .renormalize = true},
      {.top_k = 3, .scale = 0.5F},
      {.scoring = ExpertScoring::kSigmoid, .top_k = 6, .renormalize = true, .scale = 2.5F},
      {.scoring = ExpertScoring::kSigmoid, .top_k = 4, .num_groups = 4, .num_top_groups = 2},
  };
  enum Logits : uint8_t { kRandom, kTies, kSomeNaN, kAllNaN, kPadding, kNumLogits };
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  for (const DType dtype : float_types()) {
    for (const int32_t num_experts : {8, 32, 60, 128, 160, 256, 1000}) {
      const Experts experts(kernels(), context(), dtype, num_experts, 64, 24, /*biases=*/true);
      Array<float> correction(static_cast<size_t>(num_experts));
      for (size_t e = 0; e < correction.size(); ++e) correction[e] = 0.1F * std::sin(static_cast<float>(e));
      for (const int64_t tokens : {1, 3, 16}) {
        const Tensor x = std::move(Tensor(dtype, tokens, 64).randomize(5));
        set_workspace(kernels().fused_experts_workspace_bytes(tokens, /*top_k=*/8, experts.view()));
        for (int i = 0; i < static_cast<int>(std::size(kinds)) * kNumLogits * 2; ++i) {
          ExpertRoutingArgs args = kinds[i / 2 / kNumLogits];
          const int what = i / 2 % kNumLogits;
          if (i % 2 == 1) args.correction = correction.data();
          SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " " << tokens << " of " << num_experts
                                          << ", kind " << i / 2 / kNumLogits << " " << what << " " << i % 2);
          Tensor logits(DType::kFloat32, tokens, num_experts, 3);
          logits.randomize(6, 2.0F);
          for (int64_t e = 0; e < num_experts; ++e) {
            if (what == kTies) logits.set(tokens - 1, e, e % 5 == 3 ? 2.0F : 1.0F);
            if (what == kAllNaN || (what == kSomeNaN && e % 3 == 0)) logits.set(tokens - 1, e, kNaN);
          }
          Array<int32_t> num_tokens = {static_cast<int32_t>(what == kPadding ? tokens - 1 : tokens)};
          args.num_tokens = num_tokens.data();
          // Ids, bits of weights, counts and rows.
          const auto run = [&](bool in_one) {
            const auto choices = static_cast<size_t>(tokens * args.top_k);
            Array<int32_t> ids(choices, 77);
            Array<float> weights(choices, 77.0F);
            Array<uint64_t> counts(static_cast<size_t>(num_experts), 7);
            args.logits = logits;
            args.expert_ids = ids.data();
            args.weights = weights.data();
            args.counts = counts.data();
            const Tensor out(dtype, tokens, 64);
            const FusedExpertsArgs fused = {.out = out,
                                            .x = x,
                                            .expert_ids = ids.data(),
                                            .weights = weights.data(),
                                            .top_k = args.top_k,
                                            .experts = experts.view(),
                                            .activation = Activation::kSilu};
            if (in_one) {
              kernels().routed_experts(context(), args, fused);
            } else {
              kernels().route_to_experts(context(), args);
              kernels().fused_experts(context(), fused);
            }
            std::vector<uint32_t> bits;
            for (const float weight : read(weights)) bits.push_back(std::bit_cast<uint32_t>(weight));
            std::string rows;
            for (int64_t t = 0; t < tokens; ++t) rows += out.row_bytes(t);
            return std::tuple(read(ids), bits, read(counts), rows);
          };
          ASSERT_EQ(run(true), run(false));
        }
      }
    }
  }
}

// Alone, in company, and among so many that they are not computed at once.
TEST_P(ExpertsTest, ARowDependsOnItselfAlone) {
  if (is_cuda()) GTEST_SKIP() << "the quickest kernel for a shape is taken";
  ThreadPool pool(2);
  constexpr int64_t kTokens = 9000, kExperts = 5, kHidden = 64, kIntermediate = 32;
  for (const DType dtype : float_types()) {
    const Experts experts(kernels(), context(), dtype, kExperts, kHidden, kIntermediate, true);
    const Tensor x = std::move(Tensor(dtype, kTokens, kHidden).randomize(5));
    const Tensor logits = std::move(Tensor(DType::kFloat32, kTokens, kExperts).randomize(6));
    Routing routing = route(logits, {.top_k = 2, .renormalize = true});
    set_workspace(kernels().fused_experts_workspace_bytes(kTokens, 2, experts.view()));
    const auto run = [&](const Tensor& out, int64_t first, int64_t count, ThreadPool* threads) {
      kernels().fused_experts(context(threads), {.out = out.view().rows(first, count),
                                                 .x = x.view().rows(first, count),
                                                 .expert_ids = routing.ids.data() + 2 * first,
                                                 .weights = routing.weights.data() + 2 * first,
                                                 .top_k = 2,
                                                 .experts = experts.view(),
                                                 .activation = Activation::kSilu});
    };
    const Tensor all(dtype, kTokens, kHidden), parts(dtype, kTokens, kHidden);
    run(all, 0, kTokens, &pool);
    for (const auto& [first, count] :
         {std::pair<int64_t, int64_t>{0, 1}, {1, 7}, {8, 33}, {41, 500}, {4096, 1}, {kTokens - 1, 1}}) {
      run(parts, first, count, first % 2 == 0 ? &pool : nullptr);
      for (int64_t t = first; t < first + count; ++t) ASSERT_EQ(parts.row_bytes(t), all.row_bytes(t)) << t;
    }
  }
}

TEST_P(ExpertsTest, GatedRowsAreScaledBySigmoids) {
  for (const DType dtype : float_types()) {
    const Tensor x = std::move(Tensor(dtype, 7, 45, 3).randomize(1));
    const Tensor gate = std::move(Tensor(DType::kFloat32, 7, 1, 2).randomize(2, 3.0F));
    std::vector<double> expected = x.values();
    for (size_t i = 0; i < expected.size(); ++i)
      expected[i] /= 1 + std::exp(-static_cast<double>(gate.get(static_cast<int64_t>(i / 45), 0)));
    kernels().gate_rows(context(), x, gate);
    expect_close(x, expected, 1e-6, relative_tolerance(dtype));
  }
}

QUIRE_FOR_EVERY_TABLE(ExpertsTest);

}  // namespace
}  // namespace quire
