// Logits to token ids: bias, penalties, filters, the draw, log-probabilities.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/activation_arena.h"
#include "messages/model_runner_output.h"
#include "quire/kernels/ops.h"

namespace quire {

// One row of logits that is sampled from.
struct SamplingRow {
  const SamplingParams* params = nullptr;
  const std::vector<int32_t>* eos_token_ids = nullptr;
  const int32_t* token_ids = nullptr;  // prompt, then output
  int32_t num_prompt_tokens = 0;
  int32_t num_tokens = 0;     // the token to sample gets this index
  uint32_t result_index = 0;  // what its log-probabilities are filed under
};

// One per worker, used on its thread. Buffers grow to the largest batch and stay.
class Sampler {
 public:
  Sampler(const KernelTable& ops, int32_t vocab_size) : ops_(ops), vocab_size_(vocab_size) {}

  // Samples a token for each row; the result is good until the next call. Appends to `logprobs` those of the
  // rows that ask for them: of the model itself, before bias, penalties and temperature.
  //   logits [rows.size(), V] fp32; overwritten.
  // Takes up to logprobs_bytes of `arena` and gives it back.
  std::span<const int32_t> sample(const LaunchContext& launch, ActivationArena& arena, TensorView logits,
                                  std::span<const SamplingRow> rows, std::vector<RequestLogprobs>& logprobs);

  size_t logprobs_bytes(int64_t rows) const {
    return ActivationArena::bytes(DType::kFloat32, rows * vocab_size_);
  }

 private:
  void apply_bias(TensorView logits, std::span<const SamplingRow> rows) const;
  void apply_penalties(const LaunchContext& launch, TensorView logits, std::span<const SamplingRow> rows);
  PositionLogprobs top_logprobs(const float* logprobs, int32_t chosen, int32_t num_top);

  const KernelTable& ops_;
  int32_t vocab_size_;
  std::vector<float> temperature_, top_p_, min_p_, presence_, frequency_, repetition_;
  std::vector<int32_t> top_k_, num_prompt_tokens_, num_tokens_, sampled_, order_;
  std::vector<uint64_t> seed_;
  std::vector<int64_t> position_;
  std::vector<const int32_t*> token_ids_;
};

}  // namespace quire
