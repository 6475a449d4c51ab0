#include "engine/reasoning_counter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace quire {
namespace {

using Ids = std::vector<int32_t>;

// By the whole text so far: blocks are cut out one after the other.
int32_t count_of(const ReasoningTokens& tokens, const Ids& prompt, const Ids& output, bool is_finished) {
  Ids all = prompt;
  all.insert(all.end(), output.begin(), output.end());
  const auto own = [&](auto begin, auto end) {
    return static_cast<int32_t>(
        std::max(end - std::max(begin, all.begin() + std::ssize(prompt)), std::ptrdiff_t{0}));
  };
  int32_t count = 0;
  auto at = all.begin();
  while (true) {
    const auto start = std::search(at, all.end(), tokens.start.begin(), tokens.start.end());
    if (start == all.end()) return count;
    const auto begin = start + std::ssize(tokens.start);
    const auto end = std::search(begin, all.end(), tokens.end.begin(), tokens.end.end());
    if (end != all.end()) {
      count += own(begin, end);
      at = end + std::ssize(tokens.end);
      continue;
    }
    auto num_pending = std::min(std::ssize(tokens.end) - 1, all.end() - begin);
    while (!std::equal(all.end() - num_pending, all.end(), tokens.end.begin())) --num_pending;
    return count + own(begin, is_finished ? all.end() : all.end() - num_pending);
  }
}

TEST(ReasoningCounterTest, TokensBetweenStartAndEndCount) {
  const ReasoningTokens tokens{{1}, {2}};
  ReasoningCounter counter(tokens, Ids{7, 8});
  for (const int32_t id : {5, 1, 6, 6, 6, 2, 9, 9}) counter.append(id);
  EXPECT_EQ(counter.count(true), 3);
}

TEST(ReasoningCounterTest, ABlockMayBeginInThePromptOfWhichNothingCounts) {
  const ReasoningTokens tokens{{1, 3}, {2, 2}};
  ReasoningCounter counter(tokens, Ids{7, 1, 3, 8, 8, 2});
  EXPECT_EQ(counter.count(false), 0);
  counter.append(6);
  EXPECT_EQ(counter.count(false), 1);
  counter.append(2);  // perhaps the end
  EXPECT_EQ(counter.count(false), 1);
  EXPECT_EQ(counter.count(true), 2);
  counter.append(2);
  counter.append(5);
  EXPECT_EQ(counter.count(true), 1);
}

TEST(ReasoningCounterTest, AnyTokensCountAsTheWholeTextSays) {
  std::mt19937 random(3);
  const auto some = [&](size_t most) {
    Ids ids(random() % (most + 1));
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % 3);
    return ids;
  };
  for (int round = 0; round < 3000; ++round) {
    ReasoningTokens tokens{some(4), some(4)};
    if (tokens.empty()) continue;
    const Ids prompt = some(12), output = some(20);
    ReasoningCounter counter(tokens, prompt);
    Ids so_far;
    int32_t before = 0;
    for (const int32_t id : output) {
      counter.append(id);
      so_far.push_back(id);
      ASSERT_EQ(counter.count(false), count_of(tokens, prompt, so_far, false)) << round;
      ASSERT_EQ(counter.count(true), count_of(tokens, prompt, so_far, true)) << round;
      ASSERT_GE(counter.count(false), before) << "never fewer";
      before = counter.count(false);
    }
  }
}

}  // namespace
}  // namespace quire
