// What the rows of a batch share.
#pragma once

#include <cstdint>

#include "worker/input_batch.h"

namespace quire {

// Of the first `num_rows` rows: how many tokens in front they have the same blocks of `group` for. All were
// computed before this step, so that each row has at least one token more. At 256 rows that share 256 blocks
// it takes some microseconds, and where rows share nothing hardly any.
inline int32_t common_prefix_len(InputBatch& batch, size_t group, int32_t num_rows) {
  if (num_rows < 2) return 0;
  const BlockTable& table = batch.block_table(group);
  const std::span<const BlockId> first = table.ids(batch.request(0).state_index);
  auto count = static_cast<int32_t>(first.size());
  for (int32_t row = 0; row < num_rows && count > 0; ++row) {
    const CachedRequestState& request = batch.request(row);
    const std::span<const BlockId> ids = table.ids(request.state_index);
    count =
        std::min({count, static_cast<int32_t>(ids.size()), request.num_computed_tokens / table.block_size()});
    count = static_cast<int32_t>(std::mismatch(first.begin(), first.begin() + count, ids.begin()).first -
                                 first.begin());
  }
  return count * table.block_size();
}

}  // namespace quire
