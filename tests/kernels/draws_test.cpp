// Every table draws the token that the plainest program with the same arithmetic draws: so the same as the
// others.
#include <algorithm>
#include <cmath>

#include "quire/kernels/draw_math.h"
#include "sampling_fixture.h"

namespace quire {
namespace {

namespace dm = draw_math;

// The vectors that Random123 publishes for philox4x32-10.
TEST(DrawMathTest, PhiloxGivesItsPublishedAnswers) {
  const auto words = [](dm::Words counter, uint32_t key0, uint32_t key1) {
    const dm::Words w = dm::philox(counter, key0, key1);
    return std::vector<uint32_t>(w.at, w.at + 4);
  };
  EXPECT_EQ(words({{0, 0, 0, 0}}, 0, 0),
            (std::vector<uint32_t>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(words({{~0U, ~0U, ~0U, ~0U}}, ~0U, ~0U),
            (std::vector<uint32_t>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(words({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0),
            (std::vector<uint32_t>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(DrawMathTest, SeedPositionAndTokenAreTheKeyAndTheCounter) {
  const dm::Words expected = dm::philox({{0x55667788, 0x11223344, 7, 0}}, 0xbbbbbbbb, 0xaaaaaaaa);
  const dm::Words actual = dm::words_of_group(0xaaaaaaaabbbbbbbb, 0x1122334455667788, 7);
  for (uint32_t j = 0; j < 4; ++j) {
    EXPECT_EQ(actual.at[j], expected.at[j]);
    EXPECT_EQ(dm::gumbel_of(0xaaaaaaaabbbbbbbb, 0x1122334455667788, 28 + j), dm::gumbel(expected.at[j]));
  }
}

TEST(DrawMathTest, FunctionsAreAsExactAsTheySay) {
  for (float x = 1e-11F; x < 20; x *= 1.0001F)
    EXPECT_NEAR(dm::log(x), std::log(static_cast<double>(x)),
                2.5e-7 * std::abs(std::log(static_cast<double>(x))));
  for (float d = 0; d < 86.9F; d = d * 1.0001F + 1e-5F)
    EXPECT_NEAR(dm::weight_of(d), std::exp(-static_cast<double>(d)),
                2.5e-7 * std::exp(-static_cast<double>(d)));
  EXPECT_EQ(dm::weight_of(0), 1);
  EXPECT_EQ(dm::weight_of(87), 0);
  EXPECT_EQ(dm::weight_of(INFINITY), 0);
  for (int exponent = 0; exponent > -80; --exponent)
    for (const float part : {1.0F, 0.7F, 0.99999F}) {
      const float weight = std::ldexp(part, exponent);
      EXPECT_EQ(dm::mass_of(weight), static_cast<uint64_t>(weight * 0x1p43F)) << weight;
    }
  EXPECT_EQ(dm::mass_of(0), 0U);
  const auto expect_gumbel = [](uint32_t bits, double tolerance) {
    const double v = (static_cast<double>(bits) + 0.5) * 0x1p-32;
    EXPECT_NEAR(dm::gumbel(bits), -std::log(-std::log1p(-v)), tolerance) << bits;
  };
  for (uint32_t bits = 0; bits < 100'000; ++bits) expect_gumbel(bits, 4e-6);
  for (uint32_t bits = 0; bits < 0xE0000000; bits += 99'991) expect_gumbel(bits, 4e-6);
  // The least noise: u is next to 0, and what is far from deciding a draw is coarser.
  for (uint32_t bits = 0xE0000000; bits < 0xFFFFFF00; bits += 99'991) expect_gumbel(bits, 5e-3);
  EXPECT_NEAR(dm::gumbel(0xFFFFFFFF), -2.81, 0.01);
}

// What lets a backend skip tokens whose noise it has not computed.
TEST(DrawMathTest, ALowerWordMakesALargerNoise) {
  float highest_after = -INFINITY;
  for (uint64_t bits = UINT32_MAX;; bits -= std::min<uint64_t>(bits, 4'999)) {
    const float noise = dm::gumbel(static_cast<uint32_t>(bits));
    EXPECT_GE(noise + dm::kGumbelSlack, highest_after) << bits;
    highest_after = std::max(highest_after, noise);
    if (bits == 0) break;
  }
}

int32_t draw_plainly(const std::vector<float>& logits, const Filters& filters, uint64_t seed,
                     int64_t position) {
  std::vector<uint32_t> order(logits.size());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto likelier = [&](uint32_t a, uint32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  const bool all = filters.top_k == 0 && filters.top_p == 1 && filters.min_p == 0;
  const float scale = 1.0F / filters.temperature;
  float best = -INFINITY;
  int32_t token = -1;
  if (all) {
    for (uint32_t i : order) {
      const float score = dm::score_of(logits[i], scale, dm::gumbel_of(seed, position, i));
      if (score > best) best = score, token = static_cast<int32_t>(i);
    }
    return token;
  }
  std::sort(order.begin(), order.end(), likelier);
  const float highest = logits[order[0]];
  if (filters.top_k > 0) order.resize(std::min(order.size(), static_cast<size_t>(filters.top_k)));
  const auto weight = [&](uint32_t i) { return dm::weight_of(dm::distance_of(highest, logits[i], scale)); };
  std::erase_if(order, [&](uint32_t i) { return weight(i) < filters.min_p; });
  uint64_t total = 0, before = 0;
  for (uint32_t i : order) total += dm::mass_of(weight(i));
  const double target = static_cast<double>(filters.top_p) * static_cast<double>(total);
  for (uint32_t i : order) {
    if (filters.top_p < 1 && before > 0 && static_cast<double>(before) >= target) break;
    before += dm::mass_of(weight(i));
    const float score =
        dm::score_below(dm::gumbel_of(seed, position, i), dm::distance_of(highest, logits[i], scale));
    if (score > best || (score == best && static_cast<int32_t>(i) < token))
      best = score, token = static_cast<int32_t>(i);
  }
  return token;
}

class DrawsTest : public SamplingTestBase {};

TEST_P(DrawsTest, AreThoseOfTheSameArithmeticWrittenPlainly) {
  constexpr int64_t kRows = 24;
  const Filters kinds[] = {{},
                           {.temperature = 0.7F},
                           {.temperature = 2.5F},
                           {.temperature = 1e-4F, .top_p = 0.9F},
                           {.top_k = 40},
                           {.top_p = 0.9F},
                           {.top_p = 0.999F},
                           {.min_p = 0.05F},
                           {.temperature = 1.3F, .top_p = 0.85F, .min_p = 0.1F},
                           {.temperature = 0.8F, .top_k = 50, .top_p = 0.95F},
                           {.temperature = 1.5F, .top_k = 3000, .top_p = 0.8F, .min_p = 0.001F},
                           {.top_k = 1}};
  for (const auto& [vocab, deviation] : {std::pair{77, 2.0F}, {5003, 1.0F}, {32003, 3.0F}, {128256, 0.3F}}) {
    const auto logits = normal_logits(static_cast<size_t>(vocab), deviation);
    Tensor rows(DType::kFloat32, kRows, vocab, vocab % 4);
    reserve(kRows, vocab);
    for (int round = 0; round < 2; ++round) {
      for (int64_t r = 0; r < kRows; ++r)
        std::copy(logits.begin(), logits.end(), rows.view().rows(r, 1).as<float>());
      Batch batch(rows);
      std::vector<int32_t> expected;
      for (size_t r = 0; r < kRows; ++r) {
        const Filters& filters = kinds[r % std::size(kinds)];
        batch.temperature[r] = filters.temperature;
        batch.top_k[r] = filters.top_k;
        batch.top_p[r] = filters.top_p;
        batch.min_p[r] = filters.min_p;
        batch.seed[r] = 0x9876543210 + 77 * r;
        batch.position[r] = 100 * round + static_cast<int64_t>(r) + (int64_t{1} << 33);
        expected.push_back(draw_plainly(logits, filters, batch.seed[r], batch.position[r]));
      }
      EXPECT_EQ(batch.sample(kernels(), context()), expected) << vocab;
    }
  }
}

QUIRE_FOR_EVERY_TABLE(DrawsTest);

}  // namespace
}  // namespace quire
