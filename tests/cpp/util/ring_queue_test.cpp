#include "util/ring_queue.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>

namespace quire {
namespace {

TEST(RingQueueTest, BehavesLikeADeque) {
  RingQueue<int> queue;
  std::deque<int> expected;
  std::mt19937 rng(1);
  for (int i = 0; i < 10000; ++i) {
    if (expected.empty() || rng() % 100 < 52) {
      queue.push() = i;
      expected.push_back(i);
    } else {
      queue.pop();
      expected.pop_front();
    }
    ASSERT_EQ(queue.size(), expected.size());
    if (expected.empty()) continue;
    ASSERT_EQ(queue.front(), expected.front());
    const size_t at = rng() % expected.size();
    ASSERT_EQ(queue[at], expected[at]);
  }
}

TEST(RingQueueTest, ElementsAndTheirMemoryAreUsedAgain) {
  RingQueue<std::vector<int>> queue;
  for (int i = 0; i < 10; ++i) {
    queue.push().assign(100, i);
    queue.pop();
  }
  std::vector<int>& used = queue.push();
  EXPECT_GE(used.capacity(), 100U);
  EXPECT_EQ(used.at(0), 8);  // two elements take turns: as it was popped
}

}  // namespace
}  // namespace quire
