// The block ids of every row of the batch, for one KV cache group.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "messages/kv_cache_spec.h"
#include "quire/kernels/tensor_view.h"
#include "util/check.h"
#include "worker/swap_valid.h"

namespace quire {

// Rows persist between steps. Only the valid part of a row is ever copied. A device has a copy of the table:
// what changed since it was last told is kept for each row.
class BlockTable {
 public:
  BlockTable(int32_t max_rows, int32_t max_blocks_per_row, int32_t block_size)
      : max_blocks_(max_blocks_per_row),
        block_size_(block_size),
        ids_(static_cast<size_t>(max_rows) * static_cast<size_t>(max_blocks_per_row)),
        num_blocks_(static_cast<size_t>(max_rows)),
        num_sent_(static_cast<size_t>(max_rows)) {}

  void set_row(int32_t row, std::span<const BlockId> ids) {
    num_blocks_[static_cast<size_t>(row)] = 0;
    num_sent_[static_cast<size_t>(row)] = 0;
    append(row, ids);
  }
  void append(int32_t row, std::span<const BlockId> ids) {
    int32_t& count = num_blocks_[static_cast<size_t>(row)];
    QUIRE_CHECK(count + static_cast<int32_t>(ids.size()) <= max_blocks_, "row ", row, " has ", count,
                " blocks");
    std::copy(ids.begin(), ids.end(), row_data(row) + count);
    count += static_cast<int32_t>(ids.size());
  }
  void move_row(int32_t from, int32_t to) { set_row(to, row(from)); }
  // a != b.
  void swap_rows(int32_t a, int32_t b) {
    int32_t& count_a = num_blocks_[static_cast<size_t>(a)];
    int32_t& count_b = num_blocks_[static_cast<size_t>(b)];
    swap_valid(row_data(a), count_a, row_data(b), count_b);
    std::swap(count_a, count_b);
    num_sent_[static_cast<size_t>(a)] = num_sent_[static_cast<size_t>(b)] = 0;
  }

  // The ids of a row that the device's copy lacks: those from index `begin` on. They count as sent.
  std::span<const BlockId> take_unsent(int32_t row, int32_t& begin) {
    begin = std::exchange(num_sent_[static_cast<size_t>(row)], num_blocks_[static_cast<size_t>(row)]);
    return this->row(row).subspan(static_cast<size_t>(begin));
  }

  // The slots of positions [begin, begin + count) of a row; throws InternalError when it lacks blocks for
  // them.
  void fill_slots(int32_t row, int32_t begin, int32_t count, int64_t* slots) const {
    const int32_t num_blocks = num_blocks_[static_cast<size_t>(row)];
    QUIRE_CHECK(begin + count <= int64_t{num_blocks} * block_size_, "row ", row, " has ", num_blocks,
                " blocks for ", begin + count, " tokens");
    const BlockId* ids = row_data(row);
    for (int32_t p = begin, end = begin + count; p < end;) {
      const int32_t block_end = std::min(end, (p / block_size_ + 1) * block_size_);
      int64_t slot = int64_t{ids[p / block_size_]} * block_size_ + p % block_size_;
      for (; p < block_end; ++p) *slots++ = slot++;
    }
  }
  std::span<const BlockId> row(int32_t row) const {
    return {row_data(row), static_cast<size_t>(num_blocks_[static_cast<size_t>(row)])};
  }
  int32_t block_size() const { return block_size_; }
  int32_t max_blocks() const { return max_blocks_; }
  // [num_rows, max_blocks] int32
  TensorView view(int32_t num_rows) { return {ids_.data(), DType::kInt32, num_rows, max_blocks_}; }

 private:
  BlockId* row_data(int32_t row) {
    return ids_.data() + static_cast<size_t>(row) * static_cast<size_t>(max_blocks_);
  }
  const BlockId* row_data(int32_t row) const {
    return ids_.data() + static_cast<size_t>(row) * static_cast<size_t>(max_blocks_);
  }

  int32_t max_blocks_;
  int32_t block_size_;
  std::vector<BlockId> ids_;
  std::vector<int32_t> num_blocks_;
  std::vector<int32_t> num_sent_;
};

}  // namespace quire
