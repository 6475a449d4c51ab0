#include "connectors/thinking_budget.h"

#include <algorithm>
#include <limits>

namespace quire {
namespace {

class ThinkingBudget final : public LogitsProcessor {
 public:
  explicit ThinkingBudget(const LogitsProcessorConfig& config)
      : start_(config.think_start_token_ids), end_(config.think_end_token_ids) {}

  void update_state(const BatchUpdate& update) override {
    for (const AddedRequest& added : update.added) {
      const auto row = static_cast<size_t>(added.row);
      if (row >= rows_.size()) rows_.resize(row + 1);
      rows_[row] = {*added.params->max_thinking_tokens, added.prompt_token_ids};
    }
    for (const MovedRequest& moved : update.moved)
      rows_[static_cast<size_t>(moved.to)] = rows_[static_cast<size_t>(moved.from)];
    rows_.resize(static_cast<size_t>(update.batch_size));
  }

  void apply(std::span<const LogitsRow> rows) override {
    for (const LogitsRow& row : rows) {
      const auto token = forced_token(rows_[static_cast<size_t>(row.row)], row.output_token_ids);
      if (token < 0) continue;
      std::ranges::fill(row.logits, -std::numeric_limits<float>::infinity());
      row.logits[static_cast<size_t>(token)] = 0;
    }
  }

 private:
  struct Row {
    int32_t budget = 0;
    std::span<const int32_t> prompt;
  };

  // The next token of the end, or -1 when the request thinks within its budget, or no longer.
  int32_t forced_token(const Row& row, std::span<const int32_t> output) const {
    tokens_.assign(row.prompt.begin(), row.prompt.end());
    tokens_.insert(tokens_.end(), output.begin(), output.end());
    const auto start = std::find_end(tokens_.begin(), tokens_.end(), start_.begin(), start_.end());
    if (start == tokens_.end()) return -1;
    const auto begin = start + static_cast<std::ptrdiff_t>(start_.size());
    if (std::search(begin, tokens_.end(), end_.begin(), end_.end()) != tokens_.end()) return -1;
    // Of what the prompt holds already nothing is charged.
    const auto first = std::max(begin, tokens_.begin() + static_cast<std::ptrdiff_t>(row.prompt.size()));
    if (tokens_.end() - first < row.budget) return -1;
    auto num_there = std::min<std::ptrdiff_t>(std::ssize(end_) - 1, tokens_.end() - begin);
    while (!std::equal(end_.begin(), end_.begin() + num_there, tokens_.end() - num_there)) --num_there;
    return end_[static_cast<size_t>(num_there)];
  }

  const std::vector<int32_t> start_, end_;
  std::vector<Row> rows_;
  mutable std::vector<int32_t> tokens_;  // scratch
};

}  // namespace

LogitsProcessorFactory thinking_budget_factory() {
  return {[](const LogitsProcessorConfig& config) { return std::make_unique<ThinkingBudget>(config); },
          [](const SamplingParams& params) { return params.max_thinking_tokens.has_value(); }};
}

}  // namespace quire
