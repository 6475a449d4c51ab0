// Where an answer's thinking ends.
#include "grammar/thinking.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

using Ids = std::vector<int32_t>;

// How many tokens of the answer are thoughts, their end among them; -1: all of them, and it has not come.
int num_thoughts(const ThinkTokens& tokens, const Ids& prompt, const Ids& answer) {
  Thinking thinking(tokens, prompt);
  for (size_t i = 0; i <= answer.size(); ++i) {
    if (thinking.has_ended()) return static_cast<int>(i);
    if (i < answer.size()) thinking.take(answer[i]);
  }
  return -1;
}

TEST(ThinkingTest, WithoutMarkersNobodyThinks) { EXPECT_EQ(num_thoughts({}, {1, 2}, {3}), 0); }

TEST(ThinkingTest, ThePromptSaysWhetherItHasEnded) {
  const ThinkTokens tokens{{10}, {20, 21}};
  EXPECT_EQ(num_thoughts(tokens, {1, 2}, {3, 20, 21, 4}), 3);
  EXPECT_EQ(num_thoughts(tokens, {1, 10}, {3, 20, 21, 4}), 3);
  EXPECT_EQ(num_thoughts(tokens, {10, 20, 21}, {3}), 0);
  EXPECT_EQ(num_thoughts(tokens, {10, 20, 21, 5, 10}, {3}), -1);  // it was an earlier turn's
  EXPECT_EQ(num_thoughts(tokens, {20, 21, 5}, {3}), 0);
}

TEST(ThinkingTest, TheEndMayBeginInThePromptAndWithinItself) {
  EXPECT_EQ(num_thoughts({{10}, {20, 21}}, {10, 20}, {21, 4}), 1);
  EXPECT_EQ(num_thoughts({{10}, {7, 7, 8}}, {}, {7, 7, 7, 8, 1}), 4);
  EXPECT_EQ(num_thoughts({{10}, {7, 8, 7, 9}}, {}, {7, 8, 7, 8, 7, 9, 1}), 6);
  EXPECT_EQ(num_thoughts({{10}, {7, 8}}, {}, {7, 1, 8, 7}), -1);
}

}  // namespace
}  // namespace quire
