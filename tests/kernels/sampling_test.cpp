#include "sampling_fixture.h"

namespace quire {
namespace {

class SamplingTest : public SamplingTestBase {
 protected:
  // Draws many tokens for one row of logits and compares their frequencies with the probabilities.
  void expect_distribution(const std::vector<float>& logits, const Filters& filters) {
    constexpr int64_t kDraws = 8000, kRows = 50;
    const auto vocab = static_cast<int64_t>(logits.size());
    const std::vector<double> p = reference::sampling_probabilities(
        logits, static_cast<double>(filters.temperature), filters.top_k, static_cast<double>(filters.top_p),
        static_cast<double>(filters.min_p));
    std::vector<int64_t> counts(logits.size());
    reserve(kRows, vocab);
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
};

TEST_P(SamplingTest, TemperatureZeroTakesTheLowestIdOfTheHighest) {
  for (const int64_t vocab : {1, 31, 32003}) {
    Tensor logits = std::move(Tensor(DType::kFloat32, 3, vocab).randomize(1));
    logits.set(1, vocab - 1, 100);
    logits.set(2, vocab / 2, 100);
    logits.set(2, vocab - 1, 100);
    logits.set(0, vocab / 3, 100);
    reserve(3, vocab);
    Batch batch(logits);
    batch.temperature.assign(3, 0.0F);
    const std::vector<int32_t> expected = {static_cast<int32_t>(vocab / 3), static_cast<int32_t>(vocab - 1),
                                           static_cast<int32_t>(vocab / 2)};
    EXPECT_EQ(batch.sample(kernels(), context()), expected);
  }
}

// Wherever it stands: in a vector, in a rest, in another block's part.
TEST_P(SamplingTest, ARowWithANaNHasNoTokenAndTheOthersHaveTheirs) {
  constexpr int64_t kRows = 5;
  for (const int64_t vocab : {3, 37, 50021}) {
    for (const int64_t place : {int64_t{0}, vocab / 2, vocab - 1}) {
      for (const Filters& filters : {Filters{.temperature = 0}, Filters{}, Filters{.top_k = 2},
                                     Filters{.top_p = 0.5F}, Filters{.min_p = 0.2F}}) {
        std::vector<int32_t> tokens[2];
        for (const bool broken : {false, true}) {
          Tensor logits = std::move(Tensor(DType::kFloat32, kRows, vocab).randomize(5));
          for (int64_t v = 0; v < vocab; v += 3) logits.set(4, v, -INFINITY);  // forbidden tokens are no NaN
          Batch batch(logits);
          batch.temperature.assign(kRows, filters.temperature);
          batch.top_k.assign(kRows, filters.top_k);
          batch.top_p.assign(kRows, filters.top_p);
          batch.min_p.assign(kRows, filters.min_p);
          if (broken) {
            logits.set(1, place, NAN);
            logits.set(2, place, -NAN);
            logits.set(2, 0, INFINITY);
            if (place == 0) logits.set(2, 0, NAN);
            batch.has_nan = {1, 2};
          }
          reserve(kRows, vocab);
          tokens[broken] = batch.sample(kernels(), context());
        }
        for (const size_t r : {0, 3, 4}) EXPECT_EQ(tokens[1][r], tokens[0][r]) << vocab << " " << place;
      }
    }
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
  // Top-p is a share of what min-p leaves.
  expect_distribution(logits, {.temperature = 1.5F, .top_p = 0.7F, .min_p = 0.15F});
  expect_distribution(normal_logits(1000, 0.5F), {.top_p = 0.85F, .min_p = 0.3F});
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
  reserve(1, 100);
  Batch batch(logits);
  batch.temperature[0] = 100;
  batch.top_k[0] = 1;
  EXPECT_EQ(batch.sample(kernels(), context())[0], 49);
}

TEST_P(SamplingTest, MaskedTokensAreNeverDrawn) {
  constexpr float kMasked = -std::numeric_limits<float>::infinity();
  reserve(1, 70);
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

// Greedy rows and draws with every filter, some together: alone, in another place, and after others.
TEST_P(SamplingTest, ARowDependsOnItselfAlone) {
  for (const int64_t vocab : {1003, 32003, 128256}) {
    constexpr size_t kRows = 9;
    const int64_t padding = vocab == 32003 ? 1 : 0;
    const auto fill = [](Batch& batch, size_t at, size_t kind) {
      batch.temperature[at] = kind == 0 ? 0.0F : 0.5F + 0.25F * static_cast<float>(kind);
      batch.top_k[at] = kind == 2 || kind == 5 || kind == 8 ? 5 + 100 * static_cast<int32_t>(kind) : 0;
      batch.top_p[at] = kind == 3 || kind == 5 || kind == 6 ? 0.8F : 1.0F;
      batch.min_p[at] = kind == 4 || kind == 6 ? 0.05F : 0.0F;
      batch.seed[at] = 1000 + kind;
      batch.position[at] = static_cast<int64_t>(kind) << 33;
    };
    const Tensor source = std::move(Tensor(DType::kFloat32, kRows, vocab).randomize(21, 2.0F));
    const auto copy_row = [&](const Tensor& to, size_t at, size_t kind) {
      std::memcpy(to.view().at(static_cast<int64_t>(at)), source.view().at(static_cast<int64_t>(kind)),
                  static_cast<size_t>(vocab) * sizeof(float));
    };
    reserve(kRows, vocab);
    const Tensor forward(DType::kFloat32, kRows, vocab, padding),
        backward(DType::kFloat32, kRows, vocab, padding);
    Batch first(forward), second(backward);
    for (size_t r = 0; r < kRows; ++r) {
      copy_row(forward, r, r);
      copy_row(backward, r, kRows - 1 - r);
      fill(first, r, r);
      fill(second, r, kRows - 1 - r);
    }
    const std::vector<int32_t> ids = first.sample(kernels(), context());
    std::vector<int32_t> reversed = second.sample(kernels(), context());
    std::reverse(reversed.begin(), reversed.end());
    EXPECT_EQ(reversed, ids) << vocab;
    for (size_t r = 0; r < kRows; ++r) {
      const Tensor one(DType::kFloat32, 1, vocab);
      copy_row(one, 0, r);
      Batch alone(one);
      fill(alone, 0, r);
      EXPECT_EQ(alone.sample(kernels(), context())[0], ids[r]) << vocab << " row " << r;
    }
  }
}

TEST_P(SamplingTest, WhatTheHostKnowsChangesNoToken) {
  constexpr int64_t kRows = 7, kVocab = 50021;
  reserve(kRows, kVocab);
  const auto draw = [&](float temperature, bool all_greedy, bool any_filter) {
    const Tensor logits = std::move(Tensor(DType::kFloat32, kRows, kVocab).randomize(5));
    Batch batch(logits);
    batch.temperature.assign(kRows, temperature);
    for (size_t r = 0; r < kRows; ++r) batch.position[r] = static_cast<int64_t>(r);
    batch.all_greedy = all_greedy;
    batch.any_filter = any_filter;
    return batch.sample(kernels(), context());
  };
  EXPECT_EQ(draw(0.0F, true, false), draw(0.0F, false, true));
  EXPECT_EQ(draw(1.0F, false, false), draw(1.0F, false, true));
  EXPECT_NE(draw(1.0F, false, false), draw(0.0F, true, false));
}

// What filters leave of a large vocabulary, short enough to be listed or not.
TEST_P(SamplingTest, FiltersOfALargeVocabulary) {
  constexpr int64_t kRows = 40;
  const struct {
    int64_t vocab;
    float deviation;
    Filters filters;
  } cases[] = {{128256, 3.0F, {.top_k = 50}},
               {128256, 3.0F, {.top_p = 0.9F}},
               {128256, 3.0F, {.min_p = 0.01F}},
               {128256, 3.0F, {.top_k = 1000, .top_p = 0.9F}},
               {128256, 0.5F, {.top_k = 9000}},
               {128256, 0.5F, {.top_p = 0.5F}},
               {128256, 0.5F, {.min_p = 0.3F}},
               {50021, 0.5F, {.top_k = 9000, .top_p = 0.6F, .min_p = 0.2F}},
               {32003, 3.0F, {.top_p = 0.99999F}},
               {128256, 0.1F, {.top_p = 0.1F}},
               {128256, 0.1F, {.top_k = 60000, .top_p = 0.2F}}};
  for (const auto& [vocab, deviation, filters] : cases) {
    SCOPED_TRACE(testing::Message() << vocab << " top_k=" << filters.top_k << " top_p=" << filters.top_p
                                    << " min_p=" << filters.min_p);
    const std::vector<float> logits = normal_logits(static_cast<size_t>(vocab), deviation);
    // Sums of floats end a hair beside those of doubles.
    const auto widened = [&](double by) {
      return reference::sampling_probabilities(logits, 1.0, filters.top_k,
                                               std::min(1.0, static_cast<double>(filters.top_p) + by),
                                               static_cast<double>(filters.min_p) * (1 - by));
    };
    const std::vector<double> p = widened(1e-5);
    const Tensor rows(DType::kFloat32, kRows, vocab, vocab % 4 == 0 ? 0 : 2);
    for (int64_t r = 0; r < kRows; ++r)
      std::copy(logits.begin(), logits.end(), rows.view().rows(r, 1).as<float>());
    reserve(kRows, vocab);
    Batch batch(rows);
    batch.top_k.assign(kRows, filters.top_k);
    batch.top_p.assign(kRows, filters.top_p);
    batch.min_p.assign(kRows, filters.min_p);
    for (size_t r = 0; r < kRows; ++r) batch.position[r] = static_cast<int64_t>(r);
    // The share of draws among the likelier half of what remains, which a filter cut too low would change.
    std::vector<double> sorted = p;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    double mass = 0, bound = 1;
    for (const double x : sorted) {
      if (mass >= 0.5) break;
      mass += x;
      bound = x;
    }
    int likely = 0;
    std::set<int32_t> distinct;
    for (const int32_t id : batch.sample(kernels(), context())) {
      ASSERT_TRUE(id >= 0 && id < vocab) << id;
      ASSERT_GT(p[static_cast<size_t>(id)], 0) << "token " << id << " was filtered out";
      likely += p[static_cast<size_t>(id)] >= bound;
      distinct.insert(id);
    }
    EXPECT_GT(distinct.size(), 4U);
    EXPECT_NEAR(likely, mass * kRows, 5 * std::sqrt(kRows * 0.25));
  }
}

// More equals than fit in any list: the filters cut by id.
TEST_P(SamplingTest, ManyTiesAreCutByLowestId) {
  constexpr int64_t kRows = 300, kVocab = 20000;
  const Tensor rows(DType::kFloat32, kRows, kVocab);
  for (const Filters& filters :
       {Filters{.top_k = 6000}, Filters{.top_p = 0.3F}, Filters{.top_k = 12000, .top_p = 0.5F},
        Filters{.temperature = 3.0F, .top_k = 6000, .min_p = 0.9F}}) {
    for (int64_t r = 0; r < kRows; ++r) std::fill_n(rows.view().rows(r, 1).as<float>(), kVocab, -1.25F);
    reserve(kRows, kVocab);
    Batch batch(rows);
    batch.temperature.assign(kRows, filters.temperature);
    batch.top_k.assign(kRows, filters.top_k);
    batch.top_p.assign(kRows, filters.top_p);
    batch.min_p.assign(kRows, filters.min_p);
    for (size_t r = 0; r < kRows; ++r) batch.position[r] = static_cast<int64_t>(r);
    double sum = 0;
    for (const int32_t id : batch.sample(kernels(), context())) {
      ASSERT_TRUE(id >= 0 && id <= 6000) << id;  // 0.3 of 20000 is 6000.0002 of them
      sum += id;
    }
    EXPECT_NEAR(sum / kRows, 3000, 5 * 6000 / std::sqrt(12.0 * kRows));
  }
}

// How many blocks share a flat row depends on the number of rows, and its token does not.
TEST_P(SamplingTest, FlatRowsDrawTheSameInAnyCompany) {
  constexpr int64_t kVocab = 16381, kMostRows = 136;
  const std::vector<float> logits = normal_logits(static_cast<size_t>(kVocab), 0.2F);
  const auto rows_of = [&](int64_t count) {
    Tensor rows(DType::kFloat32, count, kVocab, 2);
    for (int64_t r = 0; r < count; ++r)
      std::copy(logits.begin(), logits.end(), rows.view().rows(r, 1).as<float>());
    return rows;
  };
  reserve(kMostRows, kVocab);
  for (const Filters& filters : {Filters{.top_p = 0.9F}, Filters{.top_p = 0.4F},
                                 Filters{.top_k = 12000, .top_p = 0.6F}, Filters{.min_p = 0.3F}}) {
    SCOPED_TRACE(testing::Message() << "top_k=" << filters.top_k << " top_p=" << filters.top_p
                                    << " min_p=" << filters.min_p);
    // Row i of any batch is the same draw.
    const auto draw = [&](int64_t first, int64_t count) {
      const Tensor rows = rows_of(count);
      Batch batch(rows);
      const auto n = static_cast<size_t>(count);
      batch.top_k.assign(n, filters.top_k);
      batch.top_p.assign(n, filters.top_p);
      batch.min_p.assign(n, filters.min_p);
      batch.seed.assign(n, 7);
      for (size_t i = 0; i < n; ++i) batch.position[i] = first + static_cast<int64_t>(i);
      return batch.sample(kernels(), context());
    };
    const std::vector<int32_t> all = draw(0, kMostRows);
    for (const int64_t count : {1, 40, 100}) {
      for (int64_t first = 0; first < 5; first += count) {
        const auto begin = all.begin() + first;
        EXPECT_EQ(draw(first, count), std::vector<int32_t>(begin, begin + count)) << first << " " << count;
      }
    }
  }
}

TEST_P(SamplingTest, WhatIsNotFiniteDoesNoHarm) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr int64_t kVocab = 5003;
  for (const bool filtered : {false, true}) {
    for (const float temperature : {0.0F, 1.0F, 1e-38F}) {
      Tensor logits(DType::kFloat32, 4, kVocab);
      for (int64_t i = 0; i < kVocab; ++i) {
        logits.set(0, i, -kInfinity);                       // nothing is allowed
        logits.set(1, i, i == 4000 ? kInfinity : 1.0F);     // one is certain
        logits.set(2, i, i == 4999 ? -1e30F : -kInfinity);  // one is allowed
        logits.set(3, i, i == 77 ? 100.0F : -100.0F);
      }
      reserve(4, kVocab);
      Batch batch(logits);
      batch.temperature.assign(4, temperature);
      if (filtered) batch.top_p.assign(4, 0.9F);
      if (filtered) batch.min_p.assign(4, 0.1F);
      batch.has_no_left = {0};
      EXPECT_EQ(batch.sample(kernels(), context()), (std::vector<int32_t>{0, 4000, 4999, 77}))
          << filtered << " " << temperature;
    }
  }
}

TEST_P(SamplingTest, GreedyTiesInALargeVocabulary) {
  constexpr int64_t kVocab = 128256;
  for (const int64_t padding : {0, 1}) {
    for (const int64_t rows : {1, 65}) {
      Tensor logits = std::move(Tensor(DType::kFloat32, rows, kVocab, padding).randomize(3));
      Batch batch(logits);
      std::vector<int32_t> expected;
      for (int64_t r = 0; r < rows; ++r) {
        expected.push_back(static_cast<int32_t>((r * 7919 + 128000) % kVocab));
        for (const int64_t later : {0, 1, 5, 1500, 100000})
          logits.set(r, std::min<int64_t>(expected.back() + later, kVocab - 1), 60);
      }
      reserve(rows, kVocab);
      batch.temperature.assign(batch.rows, 0.0F);
      batch.all_greedy = true;
      EXPECT_EQ(batch.sample(kernels(), context()), expected);
    }
  }
}

// Ranks that have a part of the vocabulary each choose what one would that has all of it.
TEST_P(SamplingTest, TheBestOfPartsIsTheBestOfAll) {
  if (!is_cuda()) GTEST_SKIP() << "a host's ranks have all logits";
  constexpr int64_t kRows = 9, kVocab = 50021;
  constexpr size_t kNotANumber = 4, kNothing = 5;
  for (const int64_t padding : {0, 3}) {
    Tensor logits = std::move(Tensor(DType::kFloat32, kRows, kVocab, padding).randomize(5));
    logits.set(kNotANumber, 30000, std::nanf(""));
    for (int64_t i = 0; i < kVocab; ++i) logits.set(kNothing, i, -INFINITY);
    for (const int64_t i : {50020, 16668, 50000}) logits.set(6, i, 60);
    Batch batch(logits);
    for (size_t r = 0; r < kRows; ++r) {
      batch.temperature[r] = r % 3 == 0 ? 0.0F : 1.5F;
      batch.seed[r] = r;
      batch.position[r] = static_cast<int64_t>(100 + r);
    }
    batch.any_filter = false;
    batch.has_nan = {kNotANumber};
    batch.has_no_left = {kNothing};
    reserve(kRows, kVocab);
    const auto tokens = batch.sample(kernels(), context());
    EXPECT_EQ(tokens[6], 16668);
    for (const bool all_greedy : {false, true}) {
      batch.all_greedy = all_greedy;
      const auto whole = batch.best(kernels(), context(), 0, kVocab);
      std::vector<uint64_t> best(kRows);
      for (const auto& [first, count] :
           {std::pair<int64_t, int64_t>{0, 16668}, {16668, 16668}, {33336, 16685}}) {
        const auto of_part = batch.best(kernels(), context(), first, count);
        for (size_t r = 0; r < kRows; ++r) best[r] = std::max(best[r], of_part[r]);
      }
      EXPECT_EQ(best, whole);
      if (!all_greedy) {
        for (size_t r = 0; r < kRows; ++r) {
          const bool has_token = r != kNotANumber && r != kNothing;
          EXPECT_EQ(has_token ? static_cast<int32_t>(~static_cast<uint32_t>(best[r])) : 0, tokens[r]) << r;
        }
      }
      EXPECT_EQ(best[kNotANumber], ~uint64_t{0});
      EXPECT_EQ(best[kNothing], 0U);
    }
  }
}

QUIRE_FOR_EVERY_TABLE(SamplingTest);

}  // namespace
}  // namespace quire
