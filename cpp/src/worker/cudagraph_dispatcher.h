// Which captured graph a step may replay.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "messages/model_runner_output.h"

namespace quire {

// Steps are padded to the next captured size. Not thread-safe.
class CudagraphDispatcher {
 public:
  // Of a step that pieces are captured for: they pay off where launching takes longer than computing.
  static constexpr int32_t kMaxPiecewiseTokens = 512;
  // The sizes captured by default for steps of up to `max_tokens`: fine steps while a step is short, coarser
  // ones later, and `max_tokens` itself.
  static std::vector<int32_t> default_sizes(int32_t max_tokens);

  // Sizes in tokens, ascending; an empty list turns its mode off. `draft_sizes`: of full graphs in which
  // every row has `draft_query_len` tokens, its drafts among them.
  CudagraphDispatcher() = default;
  CudagraphDispatcher(std::vector<int32_t> full_sizes, std::vector<int32_t> piecewise_sizes,
                      int32_t draft_query_len = 0, std::vector<int32_t> draft_sizes = {})
      : full_sizes_(std::move(full_sizes)),
        piecewise_sizes_(std::move(piecewise_sizes)),
        draft_query_len_(draft_query_len),
        draft_sizes_(std::move(draft_sizes)) {}

  struct Choice {
    CudagraphMode mode = CudagraphMode::kNone;
    int32_t num_tokens = 0;  // with padding
    int32_t query_len = 1;   // of every row of a full graph
  };
  // `uniform_query_len`: the tokens of each row, all of them to sample from; 0 when rows differ. Counts its
  // answer.
  Choice dispatch(int32_t num_tokens, int32_t uniform_query_len);

  bool has_graphs() const { return !full_sizes_.empty() || !piecewise_sizes_.empty(); }
  std::span<const int32_t> full_sizes() const { return full_sizes_; }
  std::span<const int32_t> piecewise_sizes() const { return piecewise_sizes_; }
  // How many steps ran in a mode.
  uint64_t count(CudagraphMode mode) const { return counts_[static_cast<size_t>(mode)]; }

 private:
  std::vector<int32_t> full_sizes_, piecewise_sizes_;
  int32_t draft_query_len_ = 0;
  std::vector<int32_t> draft_sizes_;
  std::array<uint64_t, kNumCudagraphModes> counts_{};
};

}  // namespace quire
