#include <random>

#include "kernel_test.h"

namespace quire {
namespace {

class LogitsOpsTest : public KernelTest {};

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST_P(LogitsOpsTest, LogSoftmaxMatchesTheReference) {
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

TEST_P(LogitsOpsTest, PenaltiesFollowTheirDefinition) {
  constexpr int64_t kVocab = 50;
  ThreadPool pool(2);
  const Array<int32_t> tokens = {3, 3, 7, 49, 7, 3, 12, 12, 12};  // five of prompt, four of output
  for (const int64_t rows : {1, 6}) {
    const Tensor logits = std::move(Tensor(DType::kFloat32, rows, kVocab, 2).randomize(9));
    std::vector<double> expected = logits.values();
    const auto n = static_cast<size_t>(rows);
    Array<float> presence(n, 0.25F), frequency(n, 0.5F), repetition(n, 1.5F);
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
    const Array<const int32_t*> ids(n, tokens.data());
    const Array<int32_t> prompt(n, 5), all(n, 9);
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

// Tokens at both ends of what is counted together, and at the ends of the vocabulary.
TEST_P(LogitsOpsTest, PenaltiesReachTheWholeVocabulary) {
  constexpr int64_t kVocab = 128256;
  Array<int32_t> tokens;
  for (int32_t id = 0; id < kVocab; id += 12287) tokens.push_back(id);
  const auto num_prompt = static_cast<int32_t>(tokens.size());
  for (const int32_t id : {0, 12288, 24575, 24576, 128255, 128255, 128256, -1}) tokens.push_back(id);
  const Tensor logits = std::move(Tensor(DType::kFloat32, 1, kVocab).randomize(9));
  std::vector<double> expected = logits.values();
  for (int64_t id = 0; id < kVocab; ++id) {
    const auto at = static_cast<size_t>(id);
    int in_output = 0;
    for (size_t i = static_cast<size_t>(num_prompt); i < tokens.size(); ++i) in_output += tokens[i] == id;
    if (id % 12287 == 0 || in_output > 0)
      expected[at] = expected[at] > 0 ? expected[at] / 1.25 : expected[at] * 1.25;
    if (in_output > 0) expected[at] -= 0.5 * in_output + 0.25;
  }
  const Array<const int32_t*> ids = {tokens.data()};
  const Array<int32_t> prompt = {num_prompt}, all = {static_cast<int32_t>(tokens.size())};
  const Array<float> presence = {0.25F}, frequency = {0.5F}, repetition = {1.25F};
  kernels().apply_penalties(context(), {.logits = logits,
                                        .token_ids = ids.data(),
                                        .num_prompt_tokens = prompt.data(),
                                        .num_tokens = all.data(),
                                        .presence = presence.data(),
                                        .frequency = frequency.data(),
                                        .repetition = repetition.data()});
  expect_close(logits, expected, 1e-6, 1e-6);
}

TEST_P(LogitsOpsTest, BiasesAreAddedAndForbid) {
  Tensor logits(DType::kFloat32, 3, 40, 2);
  std::vector<double> expected;
  for (int64_t r = 0; r < 3; ++r)
    for (int64_t i = 0; i < 40; ++i) logits.set(r, i, static_cast<float>(100 * r + i));
  logits.set(2, 39, kInfinity);
  const Array<int32_t> row = {0, 2, 2, 1}, token_id = {0, 5, 39, 39};
  const Array<float> bias = {1.5F, -3.0F, -kInfinity, -kInfinity};
  kernels().apply_logit_bias(
      context(),
      {.logits = logits, .row = row.data(), .token_id = token_id.data(), .bias = bias.data(), .count = 4});
  sync();
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t i = 0; i < 40; ++i) {
      const float before = static_cast<float>(100 * r + i);
      const float after = r == 0 && i == 0   ? 1.5F
                          : r == 2 && i == 5 ? before - 3
                          : r > 0 && i == 39 ? -kInfinity
                                             : before;
      EXPECT_EQ(logits.get(r, i), after) << r << " " << i;
    }
  }
}

TEST_P(LogitsOpsTest, BitmaskForbidsWhereItIsZero) {
  ThreadPool pool(2);
  for (const int64_t vocab : {1, 31, 33, 1003, 128256}) {
    const Tensor logits = std::move(Tensor(DType::kFloat32, 4, vocab, vocab % 2).randomize(1));
    const std::vector<double> before = logits.values();
    const int64_t words = (vocab + 31) / 32;
    Array<int32_t> rows = {3, 1}, mask(static_cast<size_t>(2 * words));
    std::mt19937 random(5);
    for (int32_t& word : mask) word = static_cast<int32_t>(random() | (random() & 1 ? 0xFFF00U : 0U));
    mask[0] = vocab > 32 ? 0 : mask[0];  // all of a word
    kernels().apply_bitmask(context(&pool), logits, int_view(rows),
                            TensorView(mask.data(), DType::kInt32, 2, words));
    sync();
    for (int64_t r = 0; r < 4; ++r) {
      for (int64_t v = 0; v < vocab; ++v) {
        const int64_t i = r == 3 ? 0 : 1;
        const bool masked = r % 2 == 1;
        const auto word = static_cast<uint32_t>(mask[static_cast<size_t>(i * words + v / 32)]);
        const bool allowed = !masked || (word >> (v % 32) & 1) != 0;
        const auto x = static_cast<float>(before[static_cast<size_t>(r * vocab + v)]);
        ASSERT_EQ(logits.get(r, v), allowed ? x : -kInfinity) << vocab << " " << r << " " << v;
      }
    }
  }
}

TEST_P(LogitsOpsTest, TheLastTokenOfABadWordIsForbiddenBehindTheOthers) {
  constexpr int64_t kVocab = 50;
  const Tensor logits = std::move(Tensor(DType::kFloat32, 3, kVocab, 1).randomize(4));
  const std::vector<double> before = logits.values();
  // Five tokens of prompt; the last row has no output yet.
  const Array<int32_t> tokens = {1, 2, 3, 4, 5, 6, 7, 8};
  const Array<const int32_t*> ids(3, tokens.data());
  const Array<int32_t> prompt(3, 5), all = {8, 7, 5};
  const std::vector<std::tuple<int32_t, std::vector<int32_t>, bool>> words = {
      {0, {49}, true},          {0, {8, 10}, true},
      {0, {6, 7, 8, 11}, true}, {0, {5, 6, 7, 8, 12}, false},
      {0, {7, 13}, false},      {0, {9, 7, 8, 14}, false},
      {1, {7, 10}, true},       {1, {8, 11}, false},
      {2, {5, 10}, false},      {2, {0}, true},
      {0, {6, 9, 8, 15}, false}};
  Array<int32_t> row, begin = {0}, flat;
  std::vector<double> expected = before;
  for (const auto& [of_row, word, is_bad] : words) {
    row.push_back(of_row);
    for (const int32_t id : word) flat.push_back(id);
    begin.push_back(static_cast<int32_t>(flat.size()));
    if (is_bad) expected[static_cast<size_t>(of_row * kVocab + word.back())] = -INFINITY;
  }
  kernels().apply_bad_words(context(), {.logits = logits,
                                        .token_ids = ids.data(),
                                        .num_prompt_tokens = prompt.data(),
                                        .num_tokens = all.data(),
                                        .row = row.data(),
                                        .begin = begin.data(),
                                        .words = flat.data(),
                                        .count = static_cast<int32_t>(words.size())});
  sync();
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t v = 0; v < kVocab; ++v)
      EXPECT_EQ(logits.get(r, v), static_cast<float>(expected[static_cast<size_t>(r * kVocab + v)]))
          << r << " " << v;
  }
}

TEST_P(LogitsOpsTest, TopLogprobsAreTheLikeliestInOrder) {
  ThreadPool pool(2);
  const struct {
    int64_t vocab;
    float step;  // logits are multiples of it: ties, if it is coarse
    int32_t num_top;
  } cases[] = {{1, 0, 1},        {40, 0.5F, 40},      {1003, 0, 5},       {1003, 1.0F, 20},
               {128256, 0, 128}, {128256, 2.0F, 128}, {32003, 100.0F, 3}, {1003, 0, 0}};
  for (const auto& [vocab, step, num_top] : cases) {
    SCOPED_TRACE(testing::Message() << vocab << " " << step << " " << num_top);
    constexpr int64_t kRows = 3;
    Tensor logits = std::move(Tensor(DType::kFloat32, kRows, vocab, 1).randomize(17, 3.0F));
    for (int64_t r = 0; r < kRows && step > 0; ++r)
      for (int64_t v = 0; v < vocab; ++v) logits.set(r, v, std::round(logits.get(r, v) / step) * step);
    Array<int32_t> chosen;
    for (int64_t r = 0; r < kRows; ++r) chosen.push_back(static_cast<int32_t>(r * 7 % vocab));
    const auto top = static_cast<size_t>(kRows * num_top);
    Array<float> chosen_logprob(kRows, NAN), top_logprobs(top, NAN);
    Array<int32_t> chosen_rank(kRows, -1), top_ids(top, -1);
    kernels().top_logprobs(context(&pool), {.logits = logits,
                                            .chosen_token_id = chosen.data(),
                                            .num_top = num_top,
                                            .chosen_logprob = chosen_logprob.data(),
                                            .chosen_rank = chosen_rank.data(),
                                            .top_token_ids = top_ids.data(),
                                            .top_logprobs = top_logprobs.data()});
    sync();
    for (int64_t r = 0; r < kRows; ++r) {
      std::vector<int32_t> order(static_cast<size_t>(vocab));
      double sum = 0;
      for (int32_t v = 0; v < vocab; ++v) {
        order[static_cast<size_t>(v)] = v;
        sum += std::exp(static_cast<double>(logits.get(r, v)));
      }
      std::stable_sort(order.begin(), order.end(),
                       [&](int32_t a, int32_t b) { return logits.get(r, a) > logits.get(r, b); });
      const auto at = static_cast<size_t>(r);
      const auto rank = std::find(order.begin(), order.end(), chosen[at]) - order.begin();
      EXPECT_EQ(chosen_rank[at], rank + 1);
      EXPECT_NEAR(chosen_logprob[at], static_cast<double>(logits.get(r, chosen[at])) - std::log(sum), 2e-5);
      for (size_t i = 0; i < static_cast<size_t>(num_top); ++i) {
        const size_t out = at * static_cast<size_t>(num_top) + i;
        ASSERT_EQ(top_ids[out], order[i]) << i;
        ASSERT_NEAR(top_logprobs[out], static_cast<double>(logits.get(r, order[i])) - std::log(sum), 2e-5);
      }
    }
  }
}

TEST_P(LogitsOpsTest, SeveralTokensOfARowHaveLogprobs) {
  ThreadPool pool(2);
  for (const int64_t vocab : {40, 32003}) {
    const Tensor logits = std::move(Tensor(DType::kFloat32, 3, vocab, 1).randomize(6, 2.0F));
    const Array<int32_t> row = {2, 0, 2, 2, 0}, chosen = {5, 39, 0, 7, 5};
    Array<float> one_by_one(5), logprobs(5, NAN);
    Array<int32_t> expected_ranks(5), ranks(5, -1);
    for (size_t i = 0; i < 5; ++i) {
      kernels().top_logprobs(context(), {.logits = logits.view().rows(row[i], 1),
                                         .chosen_token_id = &chosen[i],
                                         .num_top = 0,
                                         .chosen_logprob = &one_by_one[i],
                                         .chosen_rank = &expected_ranks[i],
                                         .top_token_ids = nullptr,
                                         .top_logprobs = nullptr});
    }
    kernels().top_logprobs(context(&pool), {.logits = logits,
                                            .chosen_token_id = chosen.data(),
                                            .num_top = 0,
                                            .chosen_logprob = logprobs.data(),
                                            .chosen_rank = ranks.data(),
                                            .top_token_ids = nullptr,
                                            .top_logprobs = nullptr,
                                            .row = row.data(),
                                            .num_chosen = 5});
    EXPECT_EQ(read(logprobs), read(one_by_one)) << vocab;
    EXPECT_EQ(read(ranks), read(expected_ranks)) << vocab;
  }
}

TEST_P(LogitsOpsTest, LogprobsOfAMaskedTokenAreMinusInfinity) {
  Tensor logits(DType::kFloat32, 1, 5);
  const float values[] = {0, -kInfinity, std::log(3.0F), -kInfinity, -kInfinity};
  for (int i = 0; i < 5; ++i) logits.set(0, i, values[i]);
  const Array<int32_t> chosen = {3};
  Array<float> chosen_logprob(1), top_logprobs(4);
  Array<int32_t> chosen_rank(1), top_ids(4);
  kernels().top_logprobs(context(), {.logits = logits,
                                     .chosen_token_id = chosen.data(),
                                     .num_top = 4,
                                     .chosen_logprob = chosen_logprob.data(),
                                     .chosen_rank = chosen_rank.data(),
                                     .top_token_ids = top_ids.data(),
                                     .top_logprobs = top_logprobs.data()});
  EXPECT_EQ(read(chosen_logprob)[0], -kInfinity);
  EXPECT_EQ(read(chosen_rank)[0], 4);
  EXPECT_EQ(read(top_ids), (std::vector<int32_t>{2, 0, 1, 3}));
  const std::vector<float> top = read(top_logprobs);
  EXPECT_NEAR(top[0], std::log(0.75), 1e-6);
  EXPECT_NEAR(top[1], std::log(0.25), 1e-6);
  EXPECT_EQ(top[2], -kInfinity);
}

QUIRE_FOR_EVERY_TABLE(LogitsOpsTest);

}  // namespace
}  // namespace quire
