// Where one KV cache group lies in host memory, on one rank.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "device/buffer.h"
#include "messages/scheduler_output.h"
#include "quire/kernels/attention_backend.h"

namespace quire {

// The cache of the i-th of a group's layers, the group's block 0 beginning at `first_block`. The pages of a
// block in all layers lie next to each other.
inline KVCacheView kv_cache_view(const KVCacheGroup& group, std::byte* first_block, size_t i, DType dtype) {
  KVCacheView view;
  view.data = first_block + i * static_cast<size_t>(group.spec.page_bytes);
  view.page_stride_bytes = group.block_bytes();
  view.num_blocks = group.num_blocks;
  view.block_size = group.spec.block_size;
  view.num_kv_heads = group.spec.num_kv_heads;
  view.head_size = group.spec.head_size;
  view.dtype = dtype;
  return view;
}

// Address space for every block the group could ever have. A block takes memory when it is first touched and
// keeps it until an extent says that it loses it. Used on the worker's thread.
class KVCacheMemory {
 public:
  // `may_all_be_mapped`: all blocks of all groups may have memory at once. Otherwise huge pages are only used
  // where extents are made of whole ones: they would bring memory to blocks that must not have it.
  KVCacheMemory(const KVCacheGroup& group, bool may_all_be_mapped)
      : group_(group), first_block_(block_bytes() + padding(group)) {
    const bool whole_huge_pages = static_cast<size_t>(group.extent_bytes()) % kHugePageBytes == 0;
    pages_ = Buffer(first_block_ + block_bytes() * static_cast<size_t>(group.num_blocks - 1),
                    may_all_be_mapped || whole_huge_pages ? HugePages::kWherePossible : HugePages::kNever);
  }

  // Where block 0 would begin: the addresses of the others follow. Its own may hold other memory.
  std::byte* first_block() const { return pages_.data() + first_block_ - block_bytes(); }

  // Blocks that get memory need nothing done: the kernel gives pages when they are touched.
  void apply(const KVExtent& extent) {
    if (extent.map) return;
    pages_.discard(first_block_ + static_cast<size_t>(extent.first_block - 1) * block_bytes(),
                   static_cast<size_t>(extent.num_blocks) * block_bytes());
  }

  // All blocks lose their memory, until they are touched.
  void discard() { pages_.discard(); }

  size_t resident_bytes() const { return pages_.resident_bytes(); }

 private:
  size_t block_bytes() const { return static_cast<size_t>(group_.block_bytes()); }
  // Extents begin with block 1. They are whole pages of memory if the first one begins where a page does.
  static size_t padding(const KVCacheGroup& group) {
    const auto extent_bytes = static_cast<size_t>(group.extent_bytes());
    const size_t alignment = std::min(kHugePageBytes, extent_bytes & (~extent_bytes + 1));
    return (alignment - static_cast<size_t>(group.block_bytes()) % alignment) % alignment;
  }

  KVCacheGroup group_;
  size_t first_block_;  // bytes before block 1
  Buffer pages_;
};

}  // namespace quire
