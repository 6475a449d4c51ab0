// From the persistent batch and a step's plan to what the model reads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/staging_ring.h"
#include "layers/context.h"
#include "models/model.h"
#include "worker/input_batch.h"

namespace quire {

// A step, in the order of the batch's rows.
struct StepShape {
  InputBatch* batch = nullptr;
  std::span<const int32_t> num_scheduled;  // per row: tokens to compute
  std::span<const int32_t> sampling_rows;  // ascending: the rows that are sampled from
  int32_t num_tokens = 0;                  // of all rows
  int32_t num_decode_rows = 0;             // the first ones, with one token each
};

// One per worker, on its thread.
class StepInputs {
 public:
  virtual ~StepInputs() = default;

  // Before a request leaves the batch that may come back: the batch gets those of its tokens that only a
  // device has.
  virtual void bring_tokens(const LaunchContext& launch, InputBatch& batch,
                            const CachedRequestState& request) = 0;

  // Says what the step reads; `build` makes it so, and on a device sends all that is staged by then.
  virtual void stage(const LaunchContext& launch, const StepShape& step) = 0;
  // With padding: rows without tokens, and tokens that are computed and belong to nobody. A step of padding
  // alone has staged nothing.
  virtual void build(const LaunchContext& launch, int32_t padded_rows, int32_t padded_tokens) = 0;

  // Of the step built last.
  virtual ModelInput model_input() const = 0;
  virtual std::span<const AttentionMetadata> attention_metadata() const = 0;
  virtual TensorView logits_index() const = 0;  // [sampling_rows] int32: the last token of each

  // The tokens of a request in the batch, prompt first, in the kernels' memory: max_model_len places. A
  // device's sampler writes the next one there.
  virtual int32_t* token_ids(const CachedRequestState& request) const = 0;
};

// What inputs are sized by.
struct StepInputsConfig {
  int32_t max_num_seqs = 0;
  int32_t max_num_batched_tokens = 0;
  int32_t max_model_len = 0;
  std::vector<int32_t> block_sizes;  // of each KV cache group
};

std::unique_ptr<StepInputs> make_host_inputs(const StepInputsConfig& config);

// Device memory: tables for every row, and the inputs at addresses that never change. `plan_bytes`: what the
// backend's attention plan takes, per group.
size_t device_inputs_bytes(const StepInputsConfig& config, size_t plan_bytes);
// Bytes of the staging ring that a step may take; more goes in several rounds, with a wait between them. All
// of the longest row fits.
size_t device_inputs_staging_bytes(const StepInputsConfig& config);
std::unique_ptr<StepInputs> make_device_inputs(const StepInputsConfig& config, const BatchOps& ops,
                                               size_t plan_bytes, std::byte* memory, StagingRing& staging);

}  // namespace quire
