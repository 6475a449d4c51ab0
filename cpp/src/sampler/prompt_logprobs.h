// Log-probabilities of prompts' tokens, each given those before it, from logits that come slice by slice.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/staging_ring.h"
#include "messages/model_runner_output.h"
#include "quire/kernels/ops.h"

namespace quire {

struct SamplerConfig;

// A part of a prompt that a step computes, where log-probabilities of the tokens that follow are wanted.
struct PromptChunk {
  uint32_t result_index = 0;
  int32_t first_row = 0;  // of the step's hidden states
  int32_t count = 0;
  int32_t num_top = 0;                      // likeliest tokens at each position: up to the vocabulary
  const int32_t* next_token_ids = nullptr;  // [count] on the host: what follows each
};

// Part of a sampler, on the host or a device. Results lie where the host reads them: pinned, for a device's
// kernels. Their memory is taken when a step first wants so much, and kept; steps that want none have none.
class PromptLogprobs {
 public:
  // `staging`: a device's; null where the kernels' memory is the host's.
  PromptLogprobs(const KernelTable& ops, const SamplerConfig& config, StagingRing* staging);

  // Pushes as much as a step stages at most with its inputs, to a meter.
  static void push_most(StagingMeter& meter, const SamplerConfig& config);

  // The chunks of the step whose results go to `ring_index`, by result_index. Before its inputs are sent.
  void stage(int32_t ring_index, std::span<const PromptChunk> chunks);
  // Positions of all chunks of the step staged last, one after the other.
  int32_t num_positions() const { return num_positions_; }
  // [count] int32 in the kernels' memory: the rows of the hidden states at positions from `begin` on.
  TensorView rows(int64_t begin, int64_t count) const { return {rows_.device + begin, DType::kInt32, count}; }
  // What is wanted of positions from `begin` on.   logits [count, V] fp32
  void compute(const LaunchContext& launch, TensorView logits, int32_t ring_index, int64_t begin);
  // Once the step is done.
  void take(int32_t ring_index, std::vector<RequestLogprobs>& logprobs);

 private:
  struct Chunk {
    uint32_t result_index;
    int32_t first, count;  // positions
    int32_t num_top;
    int32_t first_whole;  // index among the rows that come whole, or -1
  };
  struct StepResult {
    std::vector<Chunk> chunks;
    std::vector<int32_t> token_ids;  // of all positions
    int32_t num_top = 0;             // the most that the kernel lists for one of them
    int32_t num_whole = 0;
    std::vector<int32_t> buffer;
    PinnedMemory pinned;
    size_t pinned_words = 0;
    // In one of them, columns: log-probabilities, ranks, the likeliest ids and theirs, whole rows.
    int32_t* words = nullptr;

    size_t positions() const { return token_ids.size(); }
    size_t top_ids() const { return 2 * positions(); }
    size_t top_logprobs() const { return (2 + static_cast<size_t>(num_top)) * positions(); }
    size_t whole() const { return (2 + 2 * static_cast<size_t>(num_top)) * positions(); }
  };
  void make_room(StepResult& result);

  const KernelTable& ops_;
  int32_t vocab_size_;
  StagingRing* staging_;
  std::vector<StepResult> results_;  // by ring index
  // Of the step staged last.
  int32_t num_positions_ = 0;
  Staged<int32_t> rows_, token_ids_;
  std::vector<int32_t> host_rows_;  // where there is no ring
  std::vector<int32_t> order_;      // scratch
};

}  // namespace quire
