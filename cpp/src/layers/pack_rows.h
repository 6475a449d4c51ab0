#pragma once

#include <algorithm>
#include <cstdint>

#include "device/buffer.h"
#include "device/for_each_range.h"
#include "layers/context.h"

namespace quire {

// Packs `num_rows` rows of `dtype` at row `row_begin` of a weight that is packed. read(out, row, count)
// writes rows [row, row + count) of them, dense; it is called on several threads at once.
template <typename Read>
void pack_rows(BuildContext& build, const LinearWeight& weight, int64_t row_begin, int64_t num_rows,
               DType dtype, const Read& read) {
  // A thread reads and packs this many bytes at a time: packed while they are in its caches.
  constexpr int64_t kBytes = 1 << 20;
  // Threads have whole multiples of these rows, which are whole panels of packed weights.
  constexpr int64_t kRows = 64;
  const int64_t row_bytes = weight.k * static_cast<int64_t>(dtype_bytes(dtype));
  LaunchContext launch = build.launch;
  launch.host = nullptr;  // the threads are taken here
  for_each_range(build.launch.host, (num_rows + kRows - 1) / kRows, [&](int64_t begin, int64_t end) {
    const int64_t last = std::min(num_rows, end * kRows);
    const int64_t at_once = std::clamp<int64_t>(kBytes / row_bytes, 1, last - begin * kRows);
    const Buffer values(static_cast<size_t>(at_once * row_bytes));
    for (int64_t row = begin * kRows; row < last; row += at_once) {
      const int64_t count = std::min(at_once, last - row);
      read(values.data(), row, count);
      build.ops.linear_pack_rows(launch, weight, row_begin + row,
                                 TensorView(values.data(), dtype, count, weight.k));
    }
  });
}

}  // namespace quire
