#include "worker/kv_cache_memory.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

// Blocks of 3 KiB (two layers of 1.5 KiB), in extents of four: three pages.
KVCacheGroup small_group() {
  KVCacheGroup group;
  group.spec.block_size = 16;
  group.spec.page_bytes = 1536;
  group.layers = {3, 5};
  group.num_blocks = 1 + 8;
  group.blocks_per_extent = 4;
  return group;
}

std::byte* page(const KVCacheMemory& memory, size_t layer, BlockId block) {
  const KVCacheView view = kv_cache_view(small_group(), memory.first_block(), layer, DType::kFloat32);
  return static_cast<std::byte*>(view.data) + block * view.page_stride_bytes;
}

TEST(KVCacheMemoryTest, ThePagesOfABlockLieSideBySide) {
  const KVCacheMemory memory(small_group(), /*may_all_be_mapped=*/true);
  EXPECT_EQ(page(memory, 1, 0) - page(memory, 0, 0), 1536);
  EXPECT_EQ(page(memory, 0, 1) - page(memory, 1, 0), 1536);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(page(memory, 0, 0)) % 64, 0U);
}

TEST(KVCacheMemoryTest, AnExtentThatIsTakenTakesAllItsPagesAndNoOthers) {
  KVCacheMemory memory(small_group(), /*may_all_be_mapped=*/false);
  for (BlockId block = 1; block <= 8; ++block) {
    for (size_t layer : {0, 1}) std::fill_n(page(memory, layer, block), 1536, std::byte{7});
  }
  const size_t before = memory.resident_bytes();
  memory.apply({0, 1, 4, 0});
  EXPECT_EQ(before - memory.resident_bytes(), 4 * 3072U);
  EXPECT_EQ(*page(memory, 0, 1), std::byte{0});
  EXPECT_EQ(page(memory, 1, 4)[1535], std::byte{0});
  EXPECT_EQ(*page(memory, 0, 5), std::byte{7});
}

TEST(KVCacheMemoryTest, GettingMemoryChangesNothing) {
  KVCacheMemory memory(small_group(), /*may_all_be_mapped=*/true);
  *page(memory, 0, 2) = std::byte{7};
  memory.apply({0, 1, 4, 1});
  EXPECT_EQ(*page(memory, 0, 2), std::byte{7});
}

}  // namespace
}  // namespace quire
