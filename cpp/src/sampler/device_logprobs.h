// Log-probabilities that a device's steps leave in pinned memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/activation_arena.h"
#include "device/staging_ring.h"
#include "quire/kernels/ops.h"
#include "sampler/sampler.h"

namespace quire {

// Part of a device's sampler. The likeliest few come from a
// kernel; for more of them than that lists, a row's log-probabilities come whole and the host sorts them.
class DeviceLogprobs {
 public:
  DeviceLogprobs(const KernelTable& ops, const SamplerConfig& config, StagingRing& staging);

  // Pushes as much as a step stages at most with its inputs, to a meter.
  static void push_most(StagingMeter& meter, size_t max_num_rows) { meter.push<int32_t>(max_num_rows); }

  // The rows of the step whose results go to `ring_index`; none when nobody wants any. Memory for rows that
  // come whole, and for tokens by id, is taken when a step first wants it, and kept.
  void stage(int32_t ring_index, std::span<const SamplingRow> rows);
  // Before the logits are changed: a copy of those rows, on `arena`.
  void copy_logits(const LaunchContext& launch, ActivationArena& arena, int32_t ring_index,
                   TensorView logits);
  // `token_ids` [rows] on the device: what was sampled.
  void compute(const LaunchContext& launch, ActivationArena& arena, int32_t ring_index, int32_t* token_ids,
               int64_t num_rows);
  // Once the step is done. `token_ids`: what was sampled, on the host.
  void take(int32_t ring_index, std::span<const int32_t> token_ids, std::vector<RequestLogprobs>& logprobs);

 private:
  // Columns of a step's results, one after the other.
  struct Layout {
    size_t chosen_logprob() const { return 0; }
    size_t chosen_rank() const { return rows; }
    size_t top_ids() const { return 2 * rows; }
    size_t top_logprobs() const;
    size_t words() const;
    size_t rows = 0;
  };
  struct Row {
    size_t row;  // of all that are sampled
    uint32_t result_index;
    int32_t num_top;
    int32_t whole;  // index among the rows that come whole, or -1
    size_t first_id, num_ids;
  };
  struct StepResult {
    std::vector<Row> rows;  // those that asked
    int32_t num_top = 0;    // the most that one of them asked for and gets from the kernel
    int32_t num_whole = 0;
    std::vector<int32_t> ids;  // of all rows, that were asked for by id
    // Log-probabilities of whole rows, then those by id, then their ranks.
    PinnedMemory more;
    size_t more_words = 0;
  };
  void compute_ids(const LaunchContext& launch, StepResult& result);
  int32_t* words(int32_t ring_index) const {
    return static_cast<int32_t*>(pinned_.get()) + static_cast<size_t>(ring_index) * layout_.words();
  }
  size_t whole_words(const StepResult& result) const {
    return static_cast<size_t>(result.num_whole) * static_cast<size_t>(vocab_size_);
  }

  const KernelTable& ops_;
  int32_t vocab_size_;
  StagingRing& staging_;
  Layout layout_;
  PinnedMemory pinned_;
  std::vector<StepResult> results_;
  Staged<int32_t> rows_;  // of the step at hand: those that asked
  TensorView own_logits_;
  std::vector<int32_t> order_;  // scratch
};

}  // namespace quire
