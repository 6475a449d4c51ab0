#include "kernel_test.h"

namespace quire {
namespace {

// The rows of one call, all fields neutral until set.
struct Batch {
  explicit Batch(const Tensor& logits)
      : logits(logits),
        rows(static_cast<size_t>(logits.view().shape[0])),
        temperature(rows, 1.0F),
        top_k(rows),
        top_p(rows, 1.0F),
        min_p(rows),
        seed(rows),
        position(rows),
        ids(rows, -1) {}

  std::vector<int32_t> sample(const KernelTable& kernels, const LaunchContext& ctx) {
    kernels.sample(ctx, {.logits = logits,
                         .temperature = temperature.data(),
                         .top_k = top_k.data(),
                         .top_p = top_p.data(),
                         .min_p = min_p.data(),
                         .seed = seed.data(),
                         .position = position.data(),
                         .sampled_token_ids = ids.data()});
    return ids;
  }

  const Tensor& logits;
  size_t rows;
  std::vector<float> temperature;
  std::vector<int32_t> top_k;
  std::vector<float> top_p, min_p;
  std::vector<uint64_t> seed;
  std::vector<int64_t> position;
  std::vector<int32_t> ids;
};

class SamplingTest : public KernelTest {
 protected:
  struct Filters {
    float temperature = 1;
    int top_k = 0;
    float top_p = 1;
    float min_p = 0;
  };

  // Draws many tokens for one row of logits and compares their frequencies with the probabilities.
  void expect_distribution(const std::vector<float>& logits, const Filters& filters) {
    constexpr int64_t kDraws = 8000, kRows = 50;
    const auto vocab = static_cast<int64_t>(logits.size());
    const std::vector<double> p = reference::sampling_probabilities(
        logits, static_cast<double>(filters.temperature), filters.top_k, static_cast<double>(filters.top_p),
        static_cast<double>(filters.min_p));
    std::vector<int64_t> counts(logits.size());
    for (int64_t draw = 0; draw < kDraws; draw += kRows) {
      Tensor rows(DType::kFloat32, kRows, vocab, 3);
      for (int64_t r = 0; r < kRows; ++r)
        std::copy(logits.begin(), logits.end(), rows.view().rows(r, 1).as<float>());
      Batch batch(rows);
      batch.temperature.assign(kRows, filters.temperature);
      batch.top_k.assign(kRows, filters.top_k);
      batch.top_p.assign(kRows, filters.top_p);
      batch.min_p.assign(kRows, filters.min_p);
      for (int64_t r = 0; r < kRows; ++r) {
        batch.seed[static_cast<size_t>(r)] = 42 + static_cast<uint64_t>(r % 2);
        batch.position[static_cast<size_t>(r)] = draw + r;
      }
      for (const int32_t id : batch.sample(kernels(), context())) ++counts[static_cast<size_t>(id)];
    }
    // Tokens expected fewer than five times are pooled, as the chi-square test wants.
    double chi_square = 0, rest = 0;
    int64_t rest_count = 0;
    int degrees = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      const double expected = p[i] * kDraws;
      if (p[i] == 0) {
        ASSERT_EQ(counts[i], 0) << "token " << i << " was filtered out";
      } else if (expected < 5) {
        rest += expected;
        rest_count += counts[i];
      } else {
        const double difference = static_cast<double>(counts[i]) - expected;
        chi_square += difference * difference / expected;
        ++degrees;
      }
    }
    if (rest > 0) {
      const double difference = static_cast<double>(rest_count) - rest;
      chi_square += difference * difference / std::max(rest, 1.0);
      ++degrees;
    }
    // Five standard deviations above the mean of the distribution; the seeds are fixed.
    const double freedom = std::max(1, degrees - 1);
    EXPECT_LT(chi_square, freedom + 5 * std::sqrt(2 * freedom) + 10);
  }

  static std::vector<float> normal_logits(size_t n, float deviation) {
    std::mt19937 random(11);
    std::normal_distribution<float> normal(0.0F, deviation);
    std::vector<float> logits(n);
    for (float& x : logits) x = normal(random);
    return logits;
  }
};

TEST_P(SamplingTest, TemperatureZeroTakesTheLowestIdOfTheHighest) {
  for (const int64_t vocab : {1, 31, 32003}) {
    Tensor logits = std::move(Tensor(DType::kFloat32, 3, vocab).randomize(1));
    logits.set(1, vocab - 1, 100);
    logits.set(2, vocab / 2, 100);
    logits.set(2, vocab - 1, 100);
    logits.set(0, vocab / 3, 100);
    Batch batch(logits);
    batch.temperature.assign(3, 0.0F);
    const std::vector<int32_t> expected = {static_cast<int32_t>(vocab / 3), static_cast<int32_t>(vocab - 1),
                                           static_cast<int32_t>(vocab / 2)};
    EXPECT_EQ(batch.sample(kernels(), context()), expected);
  }
}

TEST_P(SamplingTest, DrawsFromTheSoftmax) {
  expect_distribution({1.0F, 0.0F, -1.0F}, {});
  expect_distribution(normal_logits(200, 2.0F), {});
  expect_distribution(normal_logits(200, 2.0F), {.temperature = 0.5F});
  expect_distribution(normal_logits(1100, 1.0F), {.temperature = 2.0F});
}

TEST_P(SamplingTest, TopKTopPAndMinP) {
  const std::vector<float> logits = normal_logits(500, 3.0F);
  expect_distribution(logits, {.top_k = 20});
  expect_distribution(logits, {.top_p = 0.7F});
  expect_distribution(logits, {.min_p = 0.1F});
  expect_distribution(logits, {.temperature = 1.5F, .top_k = 50, .top_p = 0.8F, .min_p = 0.02F});
  expect_distribution(normal_logits(1000, 0.1F), {.top_p = 0.5F});  // flat: half the vocabulary remains
  expect_distribution(normal_logits(1000, 30.0F), {.top_k = 100});  // steep: most of them weigh nothing
}

TEST_P(SamplingTest, TiesAreCutByLowestId) {
  const std::vector<float> flat(40, 2.5F);
  expect_distribution(flat, {.top_k = 7});
  expect_distribution(flat, {.top_p = 0.24F});  // ten of forty
  std::vector<float> pairs(30);
  for (size_t i = 0; i < pairs.size(); ++i) pairs[i] = static_cast<float>(i * 7 % 30 / 3);
  expect_distribution(pairs, {.top_k = 5});
  expect_distribution(pairs, {.top_p = 0.8F});
}

TEST_P(SamplingTest, TopKOfOneIsGreedyEvenWhenHot) {
  Tensor logits(DType::kFloat32, 1, 100);
  for (int i = 0; i < 100; ++i) logits.set(0, i, 1.0F + 1e-6F * static_cast<float>(i % 50));
  Batch batch(logits);
  batch.temperature[0] = 100;
  batch.top_k[0] = 1;
  EXPECT_EQ(batch.sample(kernels(), context())[0], 49);
}

TEST_P(SamplingTest, MaskedTokensAreNeverDrawn) {
  constexpr float kMasked = -std::numeric_limits<float>::infinity();
  for (const bool filtered : {false, true}) {
    for (int64_t position = 0; position < 200; ++position) {
      Tensor logits(DType::kFloat32, 1, 70);
      for (int i = 0; i < 70; ++i) logits.set(0, i, i == 33 || i == 65 ? -50.0F : kMasked);
      Batch batch(logits);
      batch.position[0] = position;
      if (filtered) batch.top_p[0] = 0.999F;
      const int32_t id = batch.sample(kernels(), context())[0];
      EXPECT_TRUE(id == 33 || id == 65) << id;
    }
  }
}

TEST_P(SamplingTest, ADrawDependsOnSeedAndPositionOnly) {
  ThreadPool pool(3);
  constexpr int64_t kRows = 9, kVocab = 32003;
  const auto logits = [] { return std::move(Tensor(DType::kFloat32, kRows, kVocab).randomize(7)); };
  const auto draw = [&](const LaunchContext& ctx, uint64_t seed, int64_t position) {
    const Tensor rows = logits();
    Batch batch(rows);
    batch.seed.assign(kRows, seed);
    batch.position.assign(kRows, position);
    for (size_t r = 0; r < kRows; r += 2) batch.top_p[r] = 0.9F;
    return batch.sample(kernels(), ctx);
  };
  const auto first = draw(context(&pool), 1, 1);
  EXPECT_EQ(draw(context(), 1, 1), first);
  EXPECT_NE(draw(context(), 2, 1), first);
  EXPECT_NE(draw(context(), 1, 2), first);
  const Tensor rows = logits();
  Tensor one(DType::kFloat32, 1, kVocab);
  std::memcpy(one.view().data, rows.view().at(5), kVocab * sizeof(float));
  Batch alone(one);
  alone.seed[0] = 1;
  alone.position[0] = 1;
  EXPECT_EQ(alone.sample(kernels(), context())[0], first[5]);
}

TEST_P(SamplingTest, LogSoftmaxMatchesTheReference) {
  ThreadPool pool(2);
  for (const int64_t vocab : {1, 17, 32003}) {
    for (const int64_t rows : {1, 4}) {
      const Tensor logits = std::move(Tensor(DType::kFloat32, rows, vocab, 5).randomize(3, 5.0F));
      std::vector<double> expected;
      for (int64_t r = 0; r < rows; ++r) {
        double sum = 0;
        for (int64_t i = 0; i < vocab; ++i) sum += std::exp(static_cast<double>(logits.get(r, i)));
        for (int64_t i = 0; i < vocab; ++i)
          expected.push_back(static_cast<double>(logits.get(r, i)) - std::log(sum));
      }
      const Tensor out(DType::kFloat32, rows, vocab);
      kernels().log_softmax(context(&pool), out, logits);
      expect_close(out, expected, 1e-6, 1e-6);
      kernels().log_softmax(context(), logits, logits);
      expect_close(logits, expected, 1e-6, 1e-6);
    }
  }
}

TEST_P(SamplingTest, PenaltiesFollowTheirDefinition) {
  constexpr int64_t kVocab = 50;
  ThreadPool pool(2);
  const std::vector<int32_t> tokens = {3, 3, 7, 49, 7, 3, 12, 12, 12};  // five of prompt, four of output
  for (const int64_t rows : {1, 6}) {
    const Tensor logits = std::move(Tensor(DType::kFloat32, rows, kVocab, 2).randomize(9));
    std::vector<double> expected = logits.values();
    const auto n = static_cast<size_t>(rows);
    std::vector<float> presence(n, 0.25F), frequency(n, 0.5F), repetition(n, 1.5F);
    presence[0] = frequency[0] = 0;
    if (rows > 1) repetition[1] = 1;
    if (rows > 2) presence[2] = frequency[2] = 0, repetition[2] = 1;
    for (size_t r = 0; r < n; ++r) {
      for (const int32_t id : {3, 7, 49, 12}) {
        double& x = expected[r * kVocab + static_cast<size_t>(id)];
        x = x > 0 ? x / static_cast<double>(repetition[r]) : x * static_cast<double>(repetition[r]);
        const int count = id == 3 ? 1 : id == 12 ? 3 : 0;
        if (count > 0) x -= static_cast<double>(frequency[r]) * count + static_cast<double>(presence[r]);
      }
    }
    const std::vector<const int32_t*> ids(n, tokens.data());
    const std::vector<int32_t> prompt(n, 5), all(n, 9);
    kernels().apply_penalties(context(&pool), {.logits = logits,
                                               .token_ids = ids.data(),
                                               .num_prompt_tokens = prompt.data(),
                                               .num_tokens = all.data(),
                                               .presence = presence.data(),
                                               .frequency = frequency.data(),
                                               .repetition = repetition.data()});
    expect_close(logits, expected, 1e-6, 1e-6);
  }
}

QUIRE_FOR_EVERY_TABLE(SamplingTest);

}  // namespace
}  // namespace quire
