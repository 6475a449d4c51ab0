// The block ids of every request in the batch, for one KV cache group.
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

// A row for each state index (CachedRequestState): a request that changes its row of the batch leaves its
// block ids where they are. A device has a copy of the table: what it has not been told is kept for each row.
class BlockTable {
 public:
  BlockTable(int32_t num_states, int32_t max_blocks_per_request, int32_t block_size)
      : max_blocks_(max_blocks_per_request),
        block_size_(block_size),
        ids_(static_cast<size_t>(num_states) * static_cast<size_t>(max_blocks_per_request)),
        num_blocks_(static_cast<size_t>(num_states)),
        num_sent_(static_cast<size_t>(num_states)) {}

  void set(int32_t state_index, std::span<const BlockId> ids) {
    num_blocks_[static_cast<size_t>(state_index)] = 0;
    num_sent_[static_cast<size_t>(state_index)] = 0;
    append(state_index, ids);
  }
  void append(int32_t state_index, std::span<const BlockId> ids) {
    int32_t& count = num_blocks_[static_cast<size_t>(state_index)];
    QUIRE_CHECK(count + static_cast<int32_t>(ids.size()) <= max_blocks_, "state ", state_index, " has ",
                count, " blocks");
    std::copy(ids.begin(), ids.end(), data(state_index) + count);
    count += static_cast<int32_t>(ids.size());
  }

  // The ids that the device's copy lacks: those from index `begin` on. They count as sent.
  std::span<const BlockId> take_unsent(int32_t state_index, int32_t& begin) {
    const auto index = static_cast<size_t>(state_index);
    begin = std::exchange(num_sent_[index], num_blocks_[index]);
    return ids(state_index).subspan(static_cast<size_t>(begin));
  }

  // The KV slots of positions [begin, begin + count); throws InternalError when blocks for them are missing.
  void fill_slots(int32_t state_index, int32_t begin, int32_t count, int64_t* slots) const {
    const int32_t num_blocks = num_blocks_[static_cast<size_t>(state_index)];
    QUIRE_CHECK(begin + count <= int64_t{num_blocks} * block_size_, "state ", state_index, " has ",
                num_blocks, " blocks for ", begin + count, " tokens");
    const BlockId* ids = data(state_index);
    for (int32_t p = begin, end = begin + count; p < end;) {
      const int32_t block_end = std::min(end, (p / block_size_ + 1) * block_size_);
      int64_t slot = int64_t{ids[p / block_size_]} * block_size_ + p % block_size_;
      for (; p < block_end; ++p) *slots++ = slot++;
    }
  }
  std::span<const BlockId> ids(int32_t state_index) const {
    return {data(state_index), static_cast<size_t>(num_blocks_[static_cast<size_t>(state_index)])};
  }
  int32_t block_size() const { return block_size_; }
  int32_t max_blocks() const { return max_blocks_; }
  // [num_states, max_blocks] int32
  TensorView view() {
    return {ids_.data(), DType::kInt32, static_cast<int64_t>(num_sent_.size()), max_blocks_};
  }

 private:
  BlockId* data(int32_t state_index) {
    return ids_.data() + static_cast<size_t>(state_index) * static_cast<size_t>(max_blocks_);
  }
  const BlockId* data(int32_t state_index) const {
    return ids_.data() + static_cast<size_t>(state_index) * static_cast<size_t>(max_blocks_);
  }

  int32_t max_blocks_;
  int32_t block_size_;
  std::vector<BlockId> ids_;
  std::vector<int32_t> num_blocks_;
  std::vector<int32_t> num_sent_;
};

}  // namespace quire
