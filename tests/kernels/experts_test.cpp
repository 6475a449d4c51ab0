// Mixtures of experts: who goes where, and what is computed of it.
#include <bit>
#include <cmath>
#include <limits>
#include <tuple>

#include "experts_fixture.h"

namespace quire {
namespace {

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
    // Rows of a block's tokens that its threads spread in more than one go.
    cases.push_back({400, 4, 4104, 64, 2, false, Activation::kSilu, 8});
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
        set_workspace(kernels().fused_experts_workspace_bytes(c.tokens, c.top_k, experts.view(), nullptr));
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
  struct Size {
    int32_t num_experts;
    int64_t hidden, intermediate;
  };
  std::vector<Size> sizes;
  for (const int32_t num_experts : {8, 32, 60, 128, 160, 256, 1000}) sizes.push_back({num_experts, 64, 24});
  // Rows that a device copies to shared memory.
  if (is_cuda()) sizes.insert(sizes.end(), {{8, 576, 512}, {132, 512, 512}});
  for (const DType dtype : float_types()) {
    for (const auto& [num_experts, hidden, intermediate] : sizes) {
      if (num_experts * hidden > 1 << 16 && dtype != DType::kBFloat16) continue;  // takes long to write
      const Experts experts(kernels(), context(), dtype, num_experts, hidden, intermediate, /*biases=*/true);
      Array<float> correction(static_cast<size_t>(num_experts));
      for (size_t e = 0; e < correction.size(); ++e) correction[e] = 0.1F * std::sin(static_cast<float>(e));
      for (const int64_t tokens : {1, 3, 16}) {
        const Tensor x = std::move(Tensor(dtype, tokens, hidden).randomize(5));
        set_workspace(kernels().fused_experts_workspace_bytes(tokens, /*top_k=*/8, experts.view(), nullptr));
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
            const Tensor out(dtype, tokens, hidden);
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
    set_workspace(kernels().fused_experts_workspace_bytes(kTokens, 2, experts.view(), nullptr));
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
