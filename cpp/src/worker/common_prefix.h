// What the rows of a batch share.
#pragma once

#include <algorithm>
#include <cstdint>

#include "worker/input_batch.h"

namespace quire {

// Of the first `num_rows` rows: how many tokens in front they have the same blocks of `group` for. All were
// computed before this step, so that each row has at least one token more. At 256 rows that share 256 blocks
// it takes some microseconds, and where rows share nothing hardly any.
inline int32_t common_prefix_len(InputBatch& batch, size_t group, int32_t num_rows) {
  if (num_rows < 2) return 0;
  const BlockTable& table = batch.block_table(group);
  const auto ids_of = [&](int32_t row) { return table.ids(batch.request(row).state_index).data(); };
  const auto computed_blocks = [&](int32_t row) {
    return batch.request(row).num_computed_tokens / table.block_size();
  };
  const BlockId* first = ids_of(0);
  int32_t count = computed_blocks(0);
  for (int32_t row = 1; row < num_rows && count > 0; ++row) {
    const BlockId* ids = ids_of(row);
    count = std::min(count, computed_blocks(row));
    // Where they are the same, which is compared in larger pieces, nothing more is asked.
    if (!std::equal(first, first + count, ids))
      count = static_cast<int32_t>(std::mismatch(first, first + count, ids).first - first);
  }
  return count * table.block_size();
}

}  // namespace quire
