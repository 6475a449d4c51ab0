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

namespace quire {

// Rows persist between steps. Only the valid part of a row is ever copied.
class BlockTable {
 public:
  BlockTable(int32_t max_rows, int32_t max_blocks_per_row, int32_t block_size)
      : max_blocks_(max_blocks_per_row),
        block_size_(block_size),
        ids_(static_cast<size_t>(max_rows) * static_cast<size_t>(max_blocks_per_row)),
        num_blocks_(static_cast<size_t>(max_rows)) {}

  void set_row(int32_t row, std::span<const BlockId> ids) {
    num_blocks_[static_cast<size_t>(row)] = 0;
    append(row, ids);
  }
  void append(int32_t row, std::span<const BlockId> ids) {
    int32_t& count = num_blocks_[static_cast<size_t>(row)];
    QUIRE_CHECK(count + static_cast<int32_t>(ids.size()) <= max_blocks_, "row ", row, " has ", count,
                " blocks");
    std::copy(ids.begin(), ids.end(), row_data(row) + count);
    count += static_cast<int32_t>(ids.size());
  }
  void move_row(int32_t from, int32_t to) {
    set_row(to, {row_data(from), static_cast<size_t>(num_blocks_[static_cast<size_t>(from)])});
  }
  int64_t slot(int32_t row, int32_t position) const {
    return int64_t{row_data(row)[position / block_size_]} * block_size_ + position % block_size_;
  }
  std::span<const BlockId> row(int32_t row) const {
    return {row_data(row), static_cast<size_t>(num_blocks_[static_cast<size_t>(row)])};
  }
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
};

}  // namespace quire
