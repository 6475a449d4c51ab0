// Logits to token ids: bias, penalties, grammar masks, filters, the draw, log-probabilities.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/activation_arena.h"
#include "device/staging_ring.h"
#include "messages/model_runner_output.h"
#include "quire/kernels/ops.h"
#include "sampler/row_sampling.h"

namespace quire {

// One row of logits that is sampled from.
struct SamplingRow {
  RowSampling sampling;
  const SamplingParams* params = nullptr;  // the rest of it
  const std::vector<int32_t>* eos_token_ids = nullptr;
  const int32_t* token_ids = nullptr;  // prompt, then output; in the kernels' memory
  int32_t* token_place = nullptr;      // there too: where a device's kernel writes the token; null: nowhere
  int32_t num_prompt_tokens = 0;
  int32_t num_tokens = 0;     // the token to sample gets this index
  uint32_t result_index = 0;  // what its log-probabilities are filed under
  RequestId request_id = 0;   // what a grammar's mask is filed under

  // Whether tokens that end the request are forbidden yet.
  bool is_too_short() const { return num_tokens - num_prompt_tokens < sampling.min_tokens; }
};

// One per worker. Several steps are in flight, each with a slot of its own for what it leaves behind; a slot
// is used again only when its results were taken. All but `token_ids` and `take_logprobs` belong to the
// worker's thread.
class Sampler {
 public:
  virtual ~Sampler() = default;

  // Memory of the arena that `sample` takes and gives back.
  virtual size_t scratch_bytes(int64_t rows) const = 0;
  // What the step is going to sample, before its forward pass. The rows stay where they are until `sample`.
  virtual void stage(int32_t slot, std::span<const SamplingRow> rows) = 0;
  // Samples a token for each row. Log-probabilities are those of the model itself, before bias, penalties and
  // temperature.
  //   logits [rows, V] fp32; overwritten.   grammar: null when no row has one
  virtual void sample(const LaunchContext& launch, ActivationArena& arena, TensorView logits, int32_t slot,
                      const GrammarOutput* grammar) = 0;
  // Once the step is done: a token for each row, kNoToken where its logits held a NaN, and the
  // log-probabilities of those that asked.
  virtual std::span<const int32_t> token_ids(int32_t slot) const = 0;
  virtual void take_logprobs(int32_t slot, std::vector<RequestLogprobs>& logprobs) = 0;
};

std::unique_ptr<Sampler> make_host_sampler(const KernelTable& ops, int32_t vocab_size, int32_t num_slots);

// What a device's sampler works with.
struct DeviceSamplerParts {
  const DeviceRuntime& runtime;
  StagingRing& staging;
  void* stream = nullptr;  // that every step runs on
  int32_t max_num_seqs = 0;
  int32_t num_slots = 0;
  std::byte* memory = nullptr;  // device_sampler_bytes
};
size_t device_sampler_bytes(int32_t max_num_seqs, int32_t num_slots);
// Bytes of the staging ring that a step may take, besides logit bias and masks, which grow with what is
// asked.
size_t device_sampler_staging_bytes(int32_t max_num_seqs, int32_t vocab_size);
std::unique_ptr<Sampler> make_device_sampler(const KernelTable& ops, int32_t vocab_size,
                                             const DeviceSamplerParts& parts);

}  // namespace quire
