// Logits to token ids: bias, allowed tokens, bad words, grammar masks, penalties, filters, the draw,
// log-probabilities.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "device/activation_arena.h"
#include "device/device_arena.h"
#include "device/staging_ring.h"
#include "messages/model_runner_output.h"
#include "quire/error.h"
#include "quire/kernels/ops.h"
#include "sampler/prompt_logprobs.h"
#include "sampler/row_sampling.h"
#include "sampler/token_bans.h"

namespace quire {

// One row of logits that is sampled from.
struct SamplingRow {
  RowSampling sampling;
  const SamplingParams* params = nullptr;  // the rest of it
  const std::vector<int32_t>* eos_token_ids = nullptr;
  const TokenBans* bans = nullptr;     // null: none
  const int32_t* token_ids = nullptr;  // prompt, then output; in the kernels' memory
  int32_t* token_place = nullptr;      // there too: where a device's kernel writes the token; null: nowhere
  int32_t num_prompt_tokens = 0;
  int32_t num_tokens = 0;  // the token to sample gets this index
  // What its log-probabilities and its mask are filed under: rows that follow each other may share it.
  uint32_t result_index = 0;

  // Whether tokens that end the request are forbidden yet.
  bool is_too_short() const { return num_tokens - num_prompt_tokens < sampling.min_tokens; }
};

struct SamplerConfig {
  int32_t vocab_size = 0;
  int32_t max_num_rows = 0;  // of logits
  int32_t ring_size = 1;     // steps in flight, and the one that the host writes
  int32_t max_num_batched_tokens = 0;
};

// What any sampler takes of the activations' arena for so many rows, and gives back: log-probabilities are
// computed from a copy of the logits.
inline size_t sampler_scratch_bytes(const SamplerConfig& config, int64_t rows) {
  return ActivationArena::bytes(DType::kFloat32, rows * config.vocab_size) +
         ActivationArena::bytes(DType::kFloat32, rows);
}

// One per worker. Several steps are in flight; each has an index of its own into the ring of what steps leave
// behind, which is used again only when its results were taken. All but `token_ids` and `take_logprobs`
// belong to the worker's thread.
class Sampler {
 public:
  virtual ~Sampler() = default;

  // What prompts want, as the rest of the step does: staged before its forward pass, taken once it is done.
  PromptLogprobs& prompt_logprobs() { return prompt_logprobs_; }
  // Called by `sample` with the model's own logits, once those that are to be reported are kept. Where it
  // moves them, the step goes on in their new place.
  void set_logits_hook(std::function<void(TensorView& logits)> hook) { logits_hook_ = std::move(hook); }

  // What the step is going to sample, before its forward pass. The rows stay where they are until `sample`.
  virtual void stage(int32_t ring_index, std::span<const SamplingRow> rows) = 0;
  // `stage` for the rows staged last once more, with each one token further. Only where can_repeat.
  virtual void stage_repeat(int32_t /*ring_index*/) {
    throw InternalError("this sampler is always staged anew");
  }
  virtual bool can_repeat() const { return false; }
  // Whether `sample` of what was staged last is one op, and one kernel, and so takes LaunchContext::into.
  // Where the logits hook does nothing, which it does not know.
  virtual bool is_one_kernel() const { return false; }
  // Samples a token for each row. Log-probabilities are those of the model itself, before bias, penalties and
  // temperature.
  //   logits [rows, V] fp32; overwritten.   grammar: null when no row has one
  virtual void sample(const LaunchContext& launch, ActivationArena& arena, TensorView logits,
                      int32_t ring_index, const GrammarOutput* grammar) = 0;
  // Where `sample` would be one kernel, of logits that are a rank's part of the vocabulary, from
  // `first_token_id` on: what is best of them. Gives what Communicator::choose_tokens wants.
  //   logits [rows, part of V] fp32
  virtual SamplingArgs score(const LaunchContext& /*launch*/, TensorView /*logits*/,
                             int32_t /*first_token_id*/, int32_t /*ring_index*/) {
    throw InternalError("this sampler wants all logits");
  }
  // Once the step is done: a token for each row, kNoToken where its logits held a NaN, kNoTokenLeft where all
  // tokens are forbidden, and the log-probabilities of those that asked.
  virtual std::span<const int32_t> token_ids(int32_t ring_index) const = 0;
  virtual void take_logprobs(int32_t ring_index, std::vector<RequestLogprobs>& logprobs) = 0;

 protected:
  Sampler(const KernelTable& ops, const SamplerConfig& config, StagingRing* staging)
      : prompt_logprobs_(ops, config, staging) {}
  void call_logits_hook(TensorView& logits) const {
    if (logits_hook_) logits_hook_(logits);
  }

 private:
  PromptLogprobs prompt_logprobs_;
  std::function<void(TensorView& logits)> logits_hook_;
};

// Finds the row that each mask of a step is for.
class MaskRows {
 public:
  explicit MaskRows(const SamplerConfig& config) : first_row_(static_cast<size_t>(config.max_num_rows), -1) {}
  // A row for each of grammar.result_indices. Valid until the next call.
  std::span<const int32_t> find(std::span<const SamplingRow> rows, const GrammarOutput& grammar,
                                int32_t vocab_size);

 private:
  std::vector<int32_t> first_row_;  // by result_index; -1: none
  std::vector<int32_t> rows_;
};

std::unique_ptr<Sampler> make_host_sampler(const KernelTable& ops, const SamplerConfig& config);

// What a device's sampler keeps on the device. A measuring arena says how much that is.
struct DeviceSamplerMemory {
  DeviceSamplerMemory(const SamplerConfig& config, DeviceArena& arena);

  int32_t* token_ids;      // [ring_size, max_num_rows]
  uint64_t* best;          // [max_num_rows] of a part of the vocabulary
  uint32_t* row_counters;  // [max_num_rows]
};
// Bytes of the staging ring that a step takes at most, but for more logit biases than its rows have on
// average: those go in rounds of their own.
size_t device_sampler_staging_bytes(const SamplerConfig& config);
// `stream`: that every step runs on.
std::unique_ptr<Sampler> make_device_sampler(const KernelTable& ops, const SamplerConfig& config,
                                             const DeviceSamplerMemory& memory, StagingRing& staging,
                                             void* stream);

}  // namespace quire
