#include "device/buffer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>

#include "quire/error.h"

namespace quire {
namespace {

const auto kPage = static_cast<size_t>(::sysconf(_SC_PAGESIZE));

TEST(BufferTest, PagesCostNothingUntilTheyAreTouched) {
  const Buffer buffer(size_t{1} << 34, HugePages::kNever);  // more than the machine has, perhaps
  buffer.data()[buffer.size() / 2] = std::byte{1};
  EXPECT_EQ(buffer.resident_bytes(), kPage);
}

TEST(BufferTest, DiscardGivesBackTheWholePagesInside) {
  for (const HugePages huge_pages : {HugePages::kNever, HugePages::kWherePossible}) {
    Buffer buffer(4 * kHugePageBytes, huge_pages);
    std::fill_n(buffer.data(), buffer.size(), std::byte{7});
    buffer.discard(kPage / 2, 3 * kPage);  // pages 1 and 2 are whole
    EXPECT_EQ(buffer.resident_bytes(), buffer.size() - 2 * kPage);
    EXPECT_EQ(buffer.data()[kPage - 1], std::byte{7});
    EXPECT_EQ(buffer.data()[kPage], std::byte{0});
    EXPECT_EQ(buffer.data()[3 * kPage - 1], std::byte{0});
    EXPECT_EQ(buffer.data()[3 * kPage], std::byte{7});
  }
}

TEST(BufferTest, DiscardOfLessThanAPageChangesNothing) {
  Buffer buffer(2 * kPage);
  buffer.data()[5] = std::byte{7};
  buffer.discard(1, kPage - 1);
  EXPECT_EQ(buffer.data()[5], std::byte{7});
  EXPECT_THROW(buffer.discard(kPage, kPage + 1), InternalError);
}

}  // namespace
}  // namespace quire
