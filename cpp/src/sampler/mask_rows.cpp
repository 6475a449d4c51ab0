#include "sampler/sampler.h"
#include "util/check.h"

namespace quire {

std::span<const int32_t> MaskRows::find(std::span<const SamplingRow> rows, const GrammarOutput& grammar,
                                        int32_t vocab_size) {
  const std::vector<uint32_t>& indices = grammar.result_indices;
  const size_t words = (static_cast<size_t>(vocab_size) + 31) / 32;
  QUIRE_CHECK(grammar.bitmask.size() == indices.size() * words, grammar.bitmask.size(), " words of masks");
  for (size_t i = 0; i < rows.size(); ++i) {
    const uint32_t index = rows[i].result_index;
    if (index >= first_row_.size()) first_row_.resize(index + 1, -1);
    if (i == 0 || rows[i - 1].result_index != index) first_row_[index] = static_cast<int32_t>(i);
  }
  rows_.clear();
  for (size_t i = 0; i < indices.size(); ++i) {
    const bool goes_on = i > 0 && indices[i - 1] == indices[i];
    const int32_t first = indices[i] < first_row_.size() ? first_row_[indices[i]] : -1;
    const int32_t row = goes_on ? rows_.back() + 1 : first;
    QUIRE_CHECK(first >= 0 && static_cast<size_t>(row) < rows.size() &&
                    rows[static_cast<size_t>(row)].result_index == indices[i],
                "result ", indices[i], " has a mask and is not sampled");
    rows_.push_back(row);
  }
  for (const SamplingRow& row : rows) first_row_[row.result_index] = -1;
  return rows_;
}

}  // namespace quire
