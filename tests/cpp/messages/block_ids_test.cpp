#include "messages/block_ids.h"

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

namespace quire {
namespace {

TEST(BlockIdListsTest, EachListThatIsNotEmptyIsVisitedOnce) {
  BlockIdLists lists;
  lists.clear(2);
  lists.push_empty_rows(3);
  lists.push(std::vector<BlockId>{7, 8});
  lists.end_list();
  lists.end_list();
  lists.push_empty_rows(1);
  lists.end_list();
  lists.push(9);
  lists.end_list();
  lists.push_empty_rows(2);
  ASSERT_EQ(lists.num_rows(), 8U);
  EXPECT_TRUE(lists.valid());
  std::vector<std::tuple<size_t, size_t, std::vector<BlockId>>> seen;
  lists.for_each([&](size_t row, size_t group, std::span<const BlockId> ids) {
    seen.emplace_back(row, group, std::vector<BlockId>(ids.begin(), ids.end()));
    EXPECT_EQ(ids.data(), lists.at(row, group).data());
  });
  const decltype(seen) expected = {{3, 0, {7, 8}}, {5, 1, {9}}};
  EXPECT_EQ(seen, expected);
}

}  // namespace
}  // namespace quire
