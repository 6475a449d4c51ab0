#include "kv_cache/group_policy.h"

#include <gtest/gtest.h>

#include <limits>

namespace quire {
namespace {

GroupPolicy window_of(int32_t tokens, int32_t block_size) {
  KVCacheSpec spec;
  spec.kind = KVCacheKind::kSlidingWindow;
  spec.sliding_window = tokens;
  spec.block_size = block_size;
  return GroupPolicy(spec);
}

TEST(GroupPolicyTest, ABlockIsBehindFromOneTokenOn) {
  for (const int32_t block_size : {1, 3, 16}) {
    for (const int32_t window : {1, 2, 16, 17, 100}) {
      const GroupPolicy policy = window_of(window, block_size);
      for (int32_t block = 0; block < 5; ++block) {
        const int32_t start = policy.first_start_behind(block);
        EXPECT_GT(policy.first_needed_block(start), block) << block_size << " " << window;
        EXPECT_LE(policy.first_needed_block(start - 1), block) << block_size << " " << window;
      }
    }
  }
}

TEST(GroupPolicyTest, NothingIsBehindWhatKeepsEverything) {
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  KVCacheSpec spec;
  spec.block_size = 16;
  EXPECT_EQ(GroupPolicy(spec).first_start_behind(3), kMost);
  EXPECT_EQ(window_of(kMost - 1, 16).first_start_behind(3), kMost);
}

}  // namespace
}  // namespace quire
